"""A death is known while nothing is out: no wire may wait for the next ping, and none may cry wolf."""

from __future__ import annotations

import threading
import time
from contextlib import closing, contextmanager
from statistics import median
from typing import TYPE_CHECKING

import grpc
import pytest

from discovery.registry import open_registry
from fabric.link.config import LinkTimes
from fabric.link.link import Link
from fabric.link.loop import LoopThread
from fabric.link.table import Role, State
from fabric.link.wires import LinkConfig
from fabric.rpc_fallback import peers, server
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from fabric.rpc_fallback.wire import SERVICE, SESSION_BYTES, Method
from tests.consul_network import Cut
from tests.integration.router_nodes import Nodes, settle
from tests.integration.rpc_calls import channel_to, collected, got, node, port, request, soon, wanted
from tests.integration.rpc_certificates import Authority
from tests.integration.rpc_node import EchoNode, serving
from tests.sim.link_net import SimPeer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from fabric.link.wires import Peer

__all__ = ["collected", "node", "port"]
NEVER_ASKS = LinkTimes(idle_ping_s=3600.0, backoff_s=0.05, backoff_max_s=0.2)
"""A link whose pings cannot be what finds out."""
WIRES = ("rpc", "local", "local,rpc")


def wait(done: Callable[[], bool], timeout_s: float = 20.0) -> float:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < timeout_s, "it did not come to that in time"
        time.sleep(0.001)
    return time.monotonic() - began


@contextmanager
def idle_link(peer: Peer, times: LinkTimes = NEVER_ASKS) -> Iterator[Link]:
    """A link with all its wires open, over which nothing was ever sent."""
    opened = {State.PREFERRED_LIVE} if peer.local and peer.rpc else {State.PREFERRED_ONLY, State.FALLBACK_LIVE}
    with closing(LoopThread()) as loop:
        link = Link.connect(peer, 5, LinkConfig(times), loop)
        try:
            wait_for(link, opened)
            yield link
        finally:
            link.abort("the test is over")
    del link
    settle()


@pytest.mark.parametrize(
    ("wires", "kills", "goal_s"),
    [("rpc", 1, 10.0), ("local", 1, 10.0), *(pytest.param(wires, 9, 0.1, marks=pytest.mark.long) for wires in WIRES)],
)
def test_a_killed_node_is_out_though_nobody_asks_it(tmp_path: Path, wires: str, kills: int, goal_s: float) -> None:
    times = []
    with Nodes(tmp_path) as nodes:
        for number in range(kills):
            name = f"n{number}"
            nodes.start(name, wires)
            nodes.wait_ready(name)
            peer = next(one for one in open_registry(nodes.registry).read() if one.node_id == name)
            with idle_link(peer) as link:
                time.sleep(0.0 if goal_s > 1.0 else 1.5)  # the long form is about a link that is quiet
                began = time.monotonic()
                nodes.kill(name)
                wait_for_end(link)
                times.append(time.monotonic() - began)
            del link
    assert median(times) <= goal_s, times


def wait_for(link: Link, states: set[State]) -> None:
    wait(lambda: link.statistics().state in states)


def wait_for_end(link: Link) -> None:
    wait(lambda: not link.alive)


def test_a_connection_that_breaks_alone_is_no_death(node: EchoNode) -> None:
    """The node lives: the link goes on over another connection, and has another line as soon as that answered."""
    with serving(node, RpcServerConfig()) as (served, port), closing(Cut(port)) as cut:
        peer = SimPeer(node.facts.node_id, node.facts.node_epoch, rpc=f"127.0.0.1:{cut.port}")
        with idle_link(peer) as link:
            wait_for_line(link)
            cut.pull()
            cut.mend()
            wait_for_line(link)
            served.stop(0.0)
            cut.pull()
            wait_for_end(link)
        del link


def wait_for_line(link: Link) -> None:
    def stands() -> bool:
        channel = link._wiring.channels.get(Role.FALLBACK)
        return isinstance(channel, RpcChannel) and channel.alive and channel._watching._held is not None

    wait(stands)
    assert link.alive


class Doubts:
    """How often a channel told whoever watches it to ask."""

    def __init__(self, channel: RpcChannel) -> None:
        self.count = 0
        self._channel = channel
        self._told = threading.Event()
        channel.watch(self._tell)

    def _tell(self) -> None:
        self.count += 1
        self._told.set()

    def wait(self) -> None:
        assert self._told.wait(20.0), "nothing was told"
        self._told.clear()


def test_a_node_of_an_earlier_version_is_pinged_only(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not know the method: nothing is doubted for that, and it is not asked again."""
    monkeypatch.setattr(Method, "LINE", f"/{SERVICE}/NotYet")
    with channel_to(port) as channel:
        doubts = Doubts(channel)
        wait(lambda: channel._watching._held is None)
        call = request(1, 64)
        assert got(channel.call(call, soon())) == wanted(call)
        channel._watching.renew()
        assert channel._watching._held is None
        assert (doubts.count, channel.alive) == (0, True)


def test_a_session_holds_one_line_however_many_are_opened(node: EchoNode) -> None:
    with serving(node, RpcServerConfig(threads_max=2)) as (_, port), channel_to(port) as channel:
        raw = grpc.insecure_channel(f"127.0.0.1:{port}", (("grpc.use_local_subchannel_pool", 1),))
        line = raw.unary_stream(Method.LINE)
        for stranger in (b"", b"x" * SESSION_BYTES, channel._session.token + b"x"):
            with pytest.raises(grpc.RpcError, match="unknown session"):
                next(line(stranger, timeout=20.0))
        calls = [line(channel._session.token) for _ in range(1000)]
        wait(lambda: sum(call.is_active() for call in calls) == 1)
        call = request(1, 64)
        assert got(channel.call(call, soon())) == wanted(call), "no thread of the port is held"
        raw.close()
    wait(lambda: not any(call.is_active() for call in calls))


def test_over_tls_and_with_a_token(node: EchoNode, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = RpcServerConfig(tls=authority.issue("port", authority=authority.file), token="secret")
    caller = RpcConfig(tls=authority.issue("caller", authority=authority.file), token="secret")
    with serving(node, config) as (served, port), channel_to(port, caller) as channel:
        doubts = Doubts(channel)
        call = request(1, 64)
        assert got(channel.call(call, soon())) == wanted(call)
        assert channel._watching._held is not None
        assert doubts.count == 0
        began = time.monotonic()
        served.stop(2.0)
        doubts.wait()
        assert time.monotonic() - began < 10.0
        assert not served._peers._by_session


def test_a_session_that_was_evicted_gets_another_line(node: EchoNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "EVICT_IDLE_S", 0.0)
    with serving(node, RpcServerConfig(peers_max=1)) as (_, port), channel_to(port) as channel:
        doubts, first = Doubts(channel), channel._session.token
        with channel_to(port, client_id=2):
            doubts.wait()
        with closing(LoopThread()) as loop:
            loop.submit(channel.ping(soon())).result(20.0)
        assert channel._session.token != first
        wait(lambda: channel._watching._held is not None)
        assert channel.alive


def test_an_idle_lane_that_was_cut_costs_nothing(node: EchoNode) -> None:
    """Each call finds a lane that was cut since the last one."""
    with serving(node, RpcServerConfig()) as (served, port), channel_to(port) as channel:
        doubts = Doubts(channel)
        for number, size in enumerate((64, 300_000, 64, 300_000), 1):
            call = request(number, size)
            assert got(channel.call(call, soon())) == wanted(call)
            assert node.runs[call.id] == 1
            for peer in served._peers._by_session.values():
                for lane in tuple(peer.lanes):
                    lane.wake()
        assert (channel.alive, doubts.count) == (True, 0)


def test_the_memory_of_a_caller_that_died_is_free_soon(node: EchoNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said no BYE: the end of its line is what tells. One that is heard of again keeps everything."""
    monkeypatch.setattr(server, "SWEEP_S", 0.1)
    monkeypatch.setattr(peers, "LINE_GONE_S", 0.2)
    with serving(node, RpcServerConfig()) as (_, port), channel_to(port) as stays:
        Doubts(stays)
        with channel_to(port, client_id=2) as died:
            Doubts(died)
            call = request(1, 64, client_id=2)
            assert got(died.call(call, soon())) == wanted(call)
            assert len(node.open) == 2
            died.abort("killed")
            wait(lambda: len(node.open) == 1)
        assert got(stays.call(request(1, 64), soon())) == wanted(request(1, 64))


def test_a_closed_channel_tells_whoever_watches_or_comes_later(port: int) -> None:
    with channel_to(port) as channel:
        doubts = Doubts(channel)
        channel.abort("the drill says so")
        channel.abort("twice")
        doubts.wait()
        late = Doubts(channel)
        late.wait()
