"""The rpc wire on real sockets: what its callers, its port and strangers do to it on loopback."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fabric.errors import (
    AddressInUse,
    Cancelled,
    ConfigError,
    DeadlineExceeded,
    Fate,
    ModelFailed,
    NodeLost,
    OverspillError,
    ResourceExhausted,
    StaleEpoch,
)
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from fabric.rpc_fallback.server import RpcServer
from tests.integration.rpc_calls import channel_to, collected, got, node, port, request, soon, wanted
from tests.integration.rpc_node import FACTS, LOAD, EchoNode, serving
from tests.ports import free_port

if TYPE_CHECKING:
    from fabric.transport import Call

__all__ = ["collected", "node", "port"]
NO_LANES = RpcConfig(lanes_max=0)
ROOT = Path(__file__).resolve().parent.parent.parent
SIZES = [0, 1, 64, 65_535, 65_536, 262_143, 262_144, 1_048_577, 5_000_000]


@pytest.mark.parametrize("config", [RpcConfig(), NO_LANES], ids=["lanes", "no lanes"])
@pytest.mark.parametrize("with_arena", [True, False], ids=["arena", "no arena"])
def test_every_size_comes_back(port: int, config: RpcConfig, with_arena: bool) -> None:
    arena = Arena.create(32 << 20) if with_arena else None
    with channel_to(port, config, arena) as channel:
        for number, size in enumerate(SIZES, 1):
            call = request(number, size)
            answer = channel.call(call, soon())
            staged = call.body.layout.body_bytes
            assert isinstance(answer.memory, Lease) == (with_arena and staged >= 65_536)
            assert answer.lane == (config is not NO_LANES)
            assert got(answer) == wanted(call)
    assert arena is None or arena.lent_bytes() == 0


@pytest.mark.parametrize("config", [RpcConfig(), NO_LANES], ids=["lanes", "no lanes"])
def test_a_reply_larger_than_a_message_is_fetched_without_running_again(
    node: EchoNode, port: int, config: RpcConfig
) -> None:
    with channel_to(port, config) as channel:
        for number, size in enumerate((4 << 20, (4 << 20) + 1, 9 << 20), 1):
            call = request(number, 64, f"big:{size}")
            assert got(channel.call(call, soon())) == (b"0123456789abcdef" * (size // 16 + 1))[:size]
            assert node.runs[call.id] == 1


def test_asynchronous_calls(port: int) -> None:
    async def all_of_them(channel: RpcChannel) -> None:
        calls = [request(number, size) for number, size in enumerate(SIZES * 3, 1)]
        answers = await asyncio.gather(*(channel.call_async(call, soon()) for call in calls))
        for call, answer in zip(calls, answers, strict=True):
            assert got(answer) == wanted(call)
        assert await channel.ping(soon()) == LOAD

    with channel_to(port) as channel:
        asyncio.run(all_of_them(channel))


@pytest.mark.parametrize("size", [64, 300_000])
@pytest.mark.parametrize("config", [RpcConfig(), NO_LANES], ids=["lanes", "no lanes"])
def test_cancelling_reaches_the_node(node: EchoNode, port: int, size: int, config: RpcConfig) -> None:
    async def give_up(channel: RpcChannel) -> None:
        task = asyncio.create_task(channel.call_async(request(1, size, "wait:20"), soon(30)))
        while not node.runs:  # noqa: ASYNC110 - the node runs in threads
            await asyncio.sleep(0.005)
        task.cancel()
        began_s = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - began_s < 10.0
        (behind,) = node.open
        while not behind.cancelled:  # noqa: ASYNC110 - the node runs in threads
            await asyncio.sleep(0.005)
        assert time.monotonic() - began_s < 10.0

    with channel_to(port, config) as channel:
        asyncio.run(give_up(channel))
        call = request(2, size)
        assert got(channel.call(call, soon())) == wanted(call)


def _cancel_once_it_runs(node: EchoNode, channel: RpcChannel, call: Call) -> None:
    while not node.runs:
        time.sleep(0.005)
    channel.cancel(call.id)


@pytest.mark.parametrize("size", [64, 300_000])
def test_a_blocking_call_is_cancelled_from_another_thread(node: EchoNode, port: int, size: int) -> None:
    with channel_to(port) as channel:
        call = request(1, size, "wait:20")
        cancelling = threading.Thread(target=_cancel_once_it_runs, args=(node, channel, call))
        cancelling.start()
        with pytest.raises(Cancelled) as caught:
            channel.call(call, soon(20))
        assert caught.value.fate is Fate.NEVER_RAN
        cancelling.join(10.0)


@pytest.mark.parametrize("size", [64, 300_000])
@pytest.mark.parametrize("config", [RpcConfig(), NO_LANES], ids=["lanes", "no lanes"])
def test_deadlines(port: int, size: int, config: RpcConfig) -> None:
    with channel_to(port, config) as channel:
        began_s = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            channel.call(request(1, size, "wait:20"), soon(0.3))
        assert time.monotonic() - began_s < 10.0
        with pytest.raises(DeadlineExceeded) as caught:
            channel.call(request(2, size), soon(0.0))
        assert caught.value.fate is Fate.NEVER_RAN
        call = request(3, size)
        assert got(channel.call(call, soon())) == wanted(call)


@pytest.mark.parametrize("size", [64, 300_000])
def test_errors_of_the_node_arrive_as_they_are(port: int, size: int, caplog: pytest.LogCaptureFixture) -> None:
    with channel_to(port) as channel:
        with pytest.raises(ModelFailed, match="as it was asked"):
            channel.call(request(1, size, "other"), soon())
        with pytest.raises(OverspillError, match="report it"):
            channel.call(request(2, size, "bug"), soon())
        call = request(3, size)
        answer = channel.call(call, soon())
        assert got(answer) == wanted(call)
        assert channel.alive
    caplog.clear()  # the record of the bug holds its traceback, and that the arena


def test_inputs_over_the_callers_share_are_refused_before_they_are_sent(node: EchoNode) -> None:
    with serving(node, RpcServerConfig(arena_bytes=1 << 20)) as (_, port), channel_to(port) as channel:
        with pytest.raises(ResourceExhausted, match=r"raise RouterConfig\.arena_bytes and arena_bytes_max") as caught:
            channel.call(request(1, 2 << 20), soon())
        assert caught.value.fate is Fate.NEVER_RAN
        assert not node.runs


@pytest.mark.parametrize("config", [RpcConfig(), NO_LANES], ids=["lanes", "no lanes"])
def test_a_full_arena_is_an_error_and_the_next_call_works(node: EchoNode, config: RpcConfig) -> None:
    with serving(node, RpcServerConfig(arena_bytes=1 << 20)) as (_, port), channel_to(port, config) as channel:
        (behind,) = node.open
        assert behind.arena is not None
        held = Lease.of(behind.arena, 1 << 20)
        with pytest.raises(ResourceExhausted) as caught:
            channel.call(request(1, 400_000), soon())
        assert caught.value.fate is Fate.NEVER_RAN
        held.release()
        call = request(2, 400_000)
        answer = channel.call(call, soon())
        assert got(answer) == wanted(call)
        assert answer.lane == (config is not NO_LANES), "the lane stays in step"


def test_a_port_killed_in_the_middle_of_calls() -> None:
    command = [sys.executable, "-m", "tests.integration.rpc_node"]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        fates: list[Fate] = []

        def ask(number: int, size: int) -> None:
            with pytest.raises(NodeLost) as caught:
                channel.call(request(number, size, "wait:30"), soon(30))
            fates.append(caught.value.fate)

        with channel_to(port) as channel:
            threads = [threading.Thread(target=ask, args=(n, 64 if n % 2 else 300_000)) for n in range(1, 7)]
            for thread in threads:
                thread.start()
            time.sleep(1.5)
            process.kill()
            began_s = time.monotonic()
            for thread in threads:
                thread.join(10.0)
            assert time.monotonic() - began_s < 15.0
            assert fates == [Fate.UNKNOWN] * 6
            assert not channel.alive
            with pytest.raises(NodeLost) as caught:
                channel.call(request(9, 64), soon())
            assert caught.value.fate is Fate.NEVER_RAN
    finally:
        process.kill()
        process.wait(10)
        process.stdin.close()
        process.stdout.close()


def test_nobody_there() -> None:
    with pytest.raises(NodeLost) as caught:
        RpcChannel.open(f"127.0.0.1:{free_port()}", 1, soon(3.0), RpcConfig())
    assert caught.value.fate is Fate.NEVER_RAN
    with pytest.raises(ConfigError, match="HOST:PORT"):
        RpcChannel.open("nonsense", 1, soon(1.0), RpcConfig())


def test_somebody_else_there() -> None:
    """A server that is no gRPC at all, and one that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises((DeadlineExceeded, NodeLost)) as caught:
            RpcChannel.open(f"127.0.0.1:{silent.getsockname()[1]}", 1, soon(0.5), RpcConfig())
        assert caught.value.fate is Fate.NEVER_RAN


def test_port_in_use(node: EchoNode, port: int) -> None:
    for config in (RpcServerConfig(port=port), RpcServerConfig(lane_port=port)):
        with pytest.raises(AddressInUse, match="stop it, or give another port"):
            RpcServer(config, node.open_channel, FACTS).start()
    with pytest.raises(ConfigError, match="address of this machine"):
        RpcServer(RpcServerConfig(host="192.0.2.1"), node.open_channel, FACTS).start()


def test_expected_node_and_epoch(port: int) -> None:
    for expect in (("node-a", 6), ("node-b", 7)):
        with pytest.raises(StaleEpoch, match="registry") as caught:
            RpcChannel.open(f"127.0.0.1:{port}", 1, soon(), RpcConfig(), expect=expect)
        assert caught.value.fate is Fate.NEVER_RAN
    channel = RpcChannel.open(f"127.0.0.1:{port}", 1, soon(), RpcConfig(), expect=("node-a", 7))
    assert channel.peer == FACTS
    channel.close(soon(1.0))


def test_abort_ends_everybody_and_says_why(node: EchoNode, port: int) -> None:
    reasons: list[str] = []

    def ask(number: int, size: int) -> None:
        with pytest.raises(NodeLost) as caught:
            channel.call(request(number, size, "wait:30"), soon(30))
        reasons.append(str(caught.value))

    with channel_to(port) as channel:
        threads = [threading.Thread(target=ask, args=(n, 64 if n % 2 else 300_000)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        while len(node.runs) < 4:
            time.sleep(0.005)
        channel.abort("the drill says so")
        for thread in threads:
            thread.join(20.0)
        assert reasons == ["the drill says so"] * 4


def test_close_waits_for_running_calls(node: EchoNode, port: int) -> None:
    answers: list[bytes] = []
    with channel_to(port) as channel:
        call = request(1, 300_000, "wait:0.5")
        thread = threading.Thread(target=lambda: answers.append(got(channel.call(call, soon()))))
        thread.start()
        while not node.runs:
            time.sleep(0.005)
        channel.close(soon(20.0))
        thread.join(20.0)
        assert answers == [wanted(call)]


def test_a_dead_way_to_the_node_is_opened_again(node: EchoNode, port: int) -> None:
    with channel_to(port) as channel:
        for behind in tuple(node.open):
            behind.abort("the drill")
        call = request(1, 64)
        assert got(channel.call(call, soon())) == wanted(call)
        assert node.opened == 2


def test_proxies_of_the_environment_are_not_asked(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    with channel_to(port) as channel:
        call = request(1, 64)
        assert got(channel.call(call, soon())) == wanted(call)
