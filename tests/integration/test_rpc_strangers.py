"""What a port is told by strangers, and by callers who do not listen: it stays up, and others notice nothing."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress

import grpc
import pytest

from fabric.errors import (
    AccessDenied,
    DeadlineExceeded,
    Fate,
    ResourceExhausted,
)
from fabric.frame import Kind, bare_frame
from fabric.hello import Hello, encode_hello
from fabric.rpc_fallback import peers
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from fabric.rpc_fallback.wire import Method
from tests.integration.rpc_calls import (
    channel_to,
    collected,
    got,
    node,
    port,
    request,
    soon,
    tell_as_a_stranger,
    wanted,
)
from tests.integration.rpc_node import EchoNode, serving

__all__ = ["collected", "node", "port"]


def test_a_flood_of_hellos_is_bounded(node: EchoNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "EVICT_IDLE_S", 60.0)
    with serving(node, RpcServerConfig(peers_max=4)) as (_, port):
        opened = [RpcChannel.open(f"127.0.0.1:{port}", n, soon(), RpcConfig()) for n in range(1, 5)]
        for number in range(5, 25):
            with pytest.raises(ResourceExhausted, match="serves 4 callers"):
                RpcChannel.open(f"127.0.0.1:{port}", number, soon(), RpcConfig())
        assert len(node.open) == 4
        # From now on a silent caller makes room, and opens its session again when it speaks.
        monkeypatch.setattr(peers, "EVICT_IDLE_S", 0.0)
        opened.append(RpcChannel.open(f"127.0.0.1:{port}", 30, soon(), RpcConfig()))
        assert len(node.open) == 4
        for number, channel in enumerate(opened, 1):
            for size in (64, 300_000):
                call = request(number * 1000 + size % 7, size, client_id=number)
                assert got(channel.call(call, soon())) == wanted(call)
        for channel in opened:
            channel.close(soon(1.0))
        assert len(node.open) <= 1


@pytest.mark.parametrize("given", ["", "wrong", "Secret"])
def test_a_wrong_token_is_refused(node: EchoNode, given: str) -> None:
    with serving(node, RpcServerConfig(token="secret")) as (_, port):
        with pytest.raises(AccessDenied, match="token") as caught:
            RpcChannel.open(f"127.0.0.1:{port}", 1, soon(), RpcConfig(token=given))
        assert caught.value.fate is Fate.NEVER_RAN
        assert not node.opened
        with channel_to(port, RpcConfig(token="secret")) as channel:
            assert channel.alive


def test_garbage_on_grpc_ends_that_session_only(port: int) -> None:
    with channel_to(port, client_id=1) as good, channel_to(port, client_id=2) as bad:
        raw = grpc.insecure_channel(f"127.0.0.1:{port}", (("grpc.use_local_subchannel_pool", 1),))
        for method in (Method.HELLO, Method.CALL, Method.PING, Method.CANCEL, Method.BYE):
            for message in (b"", b"x", b"\0" * 100, b"OVSP" * 50, bytes(bare_frame(Kind.PING))):
                try:
                    raw.unary_unary(method)(message, timeout=5.0)
                except grpc.RpcError as error:
                    assert error.code() is grpc.StatusCode.UNAUTHENTICATED  # noqa: PT017 - either is right
        token = bad._session.token
        answer = raw.unary_unary(Method.CALL)(token + b"\0" * 200, timeout=5.0)
        assert answer[:4] == b"OVSP"
        raw.close()
        call = request(1, 64)
        assert got(good.call(call, soon())) == wanted(call)


def test_a_stream_of_garbage(port: int) -> None:
    with channel_to(port) as channel:
        token = channel._session.token
        call = request(5, 300_000)
        head = token + channel._message(b"", call, 5.0)[:-300_032]
        raw = grpc.insecure_channel(f"127.0.0.1:{port}", (("grpc.use_local_subchannel_pool", 1),))
        stream = raw.stream_stream(Method.STREAM)
        with pytest.raises(grpc.RpcError):
            list(stream(iter([b"nonsense"]), timeout=5.0))
        with pytest.raises(grpc.RpcError, match="deadline"):
            list(stream(iter([head])))
        (cut,) = list(stream(iter([head, b"x" * 100]), timeout=5.0))
        assert b"ended after 100" in cut
        raw.close()
        assert got(channel.call(request(6, 64), soon())) == wanted(request(6, 64)), "a new session is opened"


@pytest.mark.parametrize("size", [64, 300_000])
def test_times_that_are_over_on_the_way_end_no_channel(port: int, size: int) -> None:
    with channel_to(port, RpcConfig(lanes_max=0)) as channel:
        for number in range(1, 150):
            with suppress(DeadlineExceeded):
                got(channel.call(request(number, size), soon(0.0004 + number % 15 * 0.0002)))
        assert channel.alive
        call = request(150, size)
        assert got(channel.call(call, soon())) == wanted(call)


def test_a_body_that_ends_early_harms_its_own_call_only(node: EchoNode, port: int) -> None:
    """So looks a caller whose time is over in the middle of sending: its other calls go on."""
    with channel_to(port) as channel:
        token, answers = channel._session.token, []
        call = request(1, 64, "wait:1")
        running = threading.Thread(target=lambda: answers.append(got(channel.call(call, soon()))))
        running.start()
        while not node.runs:
            time.sleep(0.005)
        head = token + channel._message(b"", request(5, 300_000), 5.0)[:-300_032]
        raw = grpc.insecure_channel(f"127.0.0.1:{port}", (("grpc.use_local_subchannel_pool", 1),))
        (cut,) = list(raw.stream_stream(Method.STREAM)(iter([head, b"x" * 100]), timeout=5.0))
        assert b"ended after 100" in cut
        raw.close()
        running.join(20.0)
        assert answers == [wanted(call)]
        assert channel._session.token == token, "no new session had to be opened"


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: node\r\n\r\n" + b"x" * 40,
        b"\0" * 4096,
        bytes(bare_frame(Kind.PING)),
        bytes(encode_hello(Hello(1, session="wrong"))),
        bytes(encode_hello(Hello(1, session="é" * 20))),
    ],
    ids=["nothing", "http", "zeros", "ping", "wrong token", "odd token"],
)
def test_garbage_on_the_lane(port: int, words: bytes) -> None:
    with channel_to(port) as channel:
        tell_as_a_stranger(channel._lanes._port, words, half_close=True)
        call = request(1, 300_000)
        answer = channel.call(call, soon())
        assert got(answer) == wanted(call)
        assert answer.lane


def test_silent_strangers_do_not_keep_callers_out(node: EchoNode) -> None:
    with serving(node, RpcServerConfig(handshake_s=0.5)) as (_, port), channel_to(port) as channel:
        lane_port = channel._lanes._port
        strangers = [socket.create_connection(("127.0.0.1", lane_port), 5.0) for _ in range(40)]
        call = request(1, 300_000)
        assert got(channel.call(call, soon())) == wanted(call)  # on the stream, if they hold every place
        for stranger in strangers:
            stranger.settimeout(5.0)
            assert not stranger.recv(1)
            stranger.close()
        # A lane that found no place is tried again after its back-off.
        deadline = soon(20.0)
        assert any(channel.call(request(number, 300_000), deadline).lane for number in range(2, 1000))


def test_health(port: int) -> None:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as raw:
        check = raw.unary_unary("/grpc.health.v1.Health/Check")
        assert check(b"", timeout=5.0) == b"\x08\x01"
        assert check(b"\x0a\x10overspill.Fabric", timeout=5.0) == b"\x08\x01"
        with pytest.raises(grpc.RpcError, match="NOT_FOUND"):
            check(b"\x0a\x01x", timeout=5.0)
        watch = raw.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=20.0)
        assert next(watch) == b"\x08\x01"
        watch.cancel()


def test_a_slow_reader_holds_up_nobody_else(port: int) -> None:
    """A caller that does not read its reply keeps its lane's thread, and nothing more."""
    with channel_to(port, client_id=1) as slow, channel_to(port, client_id=2) as other:
        warm = request(1, 300_000)
        assert got(slow.call(warm, soon())) == wanted(warm)
        lane = slow._lanes._idle[0]
        call = request(2, 8 << 20)
        lane.send(slow._message(b"", call, 1.0)[: -(8 << 20)], call.body.view(), soon())
        time.sleep(0.3)
        for number in range(3, 8):
            call = request(number, 300_000, client_id=2)
            assert got(other.call(call, soon())) == wanted(call)
