"""Lives of connections that end in odd ways: forked over, killed, collected, half opened, refused late.

Each leaves the device as it was, and a connection beside it goes on. Both ends are in one guest.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fabric.errors import NodeLost, OverspillError
from fabric.rdma import listener, terms
from fabric.rdma.channel import RdmaChannel
from tests.contract.world import wait_until
from tests.softroce.echo import CLIENT, CONFIG, FACTS, OPEN_S, EchoWorld, NoLine, after
from tests.softroce.lab import here

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.deadline import Deadline

pytestmark = [pytest.mark.guests(1, "native"), pytest.mark.long]
LARGE = 300_000
KILLED_S = 10.0


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()


def _resources() -> str:
    """What the kernel counts: queue pairs, regions, completion queues, domains of all processes."""
    return here.run(0, "rdma", "res", "show")


def _quiet(world: EchoWorld) -> bool:
    return not world.caller.links and not world.node.links and world.listener.peers == 0


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_ends_nothing_of_its_parents() -> None:
    """The child neither closes nor uses what it inherited, whichever way it ends, and the parent's connection lives."""
    with EchoWorld() as world:
        channel = world.open()
        world.echoes(channel, LARGE)
        for how in ("exit", "collect", "killed"):
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    if how == "collect":
                        gc.collect()
                    if how == "killed":
                        time.sleep(60)
                    code = 0
                finally:
                    os._exit(code)
            if how == "killed":
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            assert os.waitstatus_to_exitcode(status) == (-signal.SIGKILL if how == "killed" else 0)
            world.echoes(channel, LARGE)
        channel.close(after(5.0))


@pytest.mark.parametrize("lives", [2, pytest.param(100, marks=pytest.mark.timeout(1500))])
def test_killed_processes_leave_nothing_on_the_device(lives: int) -> None:
    """What one of them leaves would be counted: a hundred show what goes wrong now and then."""
    before = _resources()
    for _ in range(lives):
        process = here.Process(0, "tests.softroce.lonely")
        assert process.line(60.0) == "out", "it did not come to have a call out"
        process.signal(signal.SIGKILL)
        assert process.wait(60.0) == -signal.SIGKILL
    assert wait_until(lambda: _resources() == before, KILLED_S), (before, _resources())


def test_the_collector_may_run_while_connections_are_closed() -> None:
    """pyverbs dies when a child of a closed parent is touched, and takes the interpreter with it."""
    over = threading.Event()

    def collect() -> None:
        while not over.is_set():
            gc.collect()

    collector = threading.Thread(target=collect, name="collector")
    with EchoWorld() as world:
        collector.start()
        try:
            for _ in range(3):
                channel = world.open()
                world.echoes(channel, 100)
                channel.close(after(5.0))
            channel = world.open()
            channel.abort("cut")
        finally:
            over.set()
            collector.join(30)
        del channel
        assert wait_until(lambda: _quiet(world))


def test_an_answer_that_is_lost_leaves_nothing_at_either_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The node's pairs exist, and their caller knows nothing of it: they end after the time that a caller may be
    silent, where no line has told before."""
    monkeypatch.setattr(listener, "LOOK_S", 0.1)
    with EchoWorld(config=replace(CONFIG, silent_s=0.5)) as world:

        def loses(offer: bytes, _: Deadline) -> tuple[bytes, NoLine]:
            asyncio.run_coroutine_threadsafe(world.listener.bootstrap(CLIENT, offer), world.node_loop).result(OPEN_S)
            raise NodeLost("the answer was lost on its way")

        with pytest.raises(NodeLost, match="lost on its way"):
            RdmaChannel.open(world.caller, loses, CLIENT, after(OPEN_S), (FACTS.node_id, FACTS.node_epoch))
        assert wait_until(lambda: _quiet(world)), (world.node.links, world.listener.peers)
        channel = world.open()
        world.echoes(channel, 100)
        channel.close(after(5.0))


def _echo_often(world: EchoWorld, channel: RdmaChannel) -> None:
    for _ in range(3):
        world.echoes(channel, 100)


@pytest.mark.parametrize("step", ["arm", "poll"])
def test_a_queue_that_fails_is_told_in_our_words(step: str) -> None:
    """The notification is refused, or completions cannot be read, once pairs are there: what is out ends, and a new
    connection is as good as any."""
    with EchoWorld() as world:
        channel = world.open()
        world.echoes(channel, 100)
        queue = world.caller._queues[0].completions
        good = getattr(queue, step)
        failed = threading.Event()

        def fails(*words: object) -> object:
            if failed.is_set():
                return good(*words)
            failed.set()
            raise world.caller._device.verbs.error("injected")  # type: ignore[union-attr]

        setattr(queue, step, fails)
        with pytest.raises(NodeLost, match="go another way"):
            _echo_often(world, channel)
        assert wait_until(lambda: not channel.alive)
        channel.abort("over")
        again = world.open()
        world.echoes(again, LARGE)
        again.close(after(5.0))


def test_a_caller_of_a_later_version_talks_as_its_node_does(monkeypatch: pytest.MonkeyPatch) -> None:
    oldest, newest = terms.own_versions()
    monkeypatch.setattr("fabric.rdma.channel.own_versions", lambda: (oldest, newest + 3))
    with EchoWorld() as world:
        channel = world.open()
        assert channel.peer.version == newest
        world.echoes(channel, LARGE)
        channel.close(after(5.0))


def test_a_caller_that_is_too_new_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    before = _resources()
    monkeypatch.setattr("fabric.rdma.channel.own_versions", lambda: (7, 9))
    with EchoWorld() as world:
        with pytest.raises(OverspillError, match="update the older side"):
            world.open()
        assert wait_until(lambda: _quiet(world))
    assert wait_until(lambda: _resources() == before), (before, _resources())


def _packets_of_256(ours: terms.Terms, theirs: terms.Terms) -> terms.Agreed:
    return replace(terms.agree(ours, theirs), mtu=1)


def test_pairs_that_were_made_for_another_packet_size_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ends agree on one, so it is forced here: the caller sends packets that the node's pair does not take."""
    with EchoWorld() as world:
        monkeypatch.setattr(listener, "agree", _packets_of_256)
        began_s = time.monotonic()
        with pytest.raises(OverspillError):
            world.echoes(world.open(), LARGE)
        assert time.monotonic() - began_s < OPEN_S
        monkeypatch.undo()
        channel = world.open()
        world.echoes(channel, LARGE)
        channel.close(after(5.0))
        assert wait_until(lambda: not world.caller.links and not world.node.links)
