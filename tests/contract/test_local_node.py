"""The node's loop and address: timers, other threads, signals, and one owner of a path at a time."""

from __future__ import annotations

import os
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from fabric.deadline import Deadline
from fabric.errors import AddressInUse, ConfigError, Fate, StaleEpoch, Unavailable
from fabric.local.address import SocketAddress
from fabric.local.channel import LocalChannel
from fabric.local.reactor import Reactor
from fabric.local.sockets import receive_with_descriptors, send_now, seqpacket, seqpacket_pair
from tests.contract.local_world import LocalWorld

if TYPE_CHECKING:
    from pathlib import Path

SHORT_S = 0.05
"""Between two timers of one test: more than the scheduler takes away between two lines of it."""


def _run(reactor: Reactor, seconds: float = 20.0) -> None:
    """Turns until the reactor is stopped; a test that forgets to stop it fails here."""
    guard = reactor.call_later(seconds, reactor.stop)
    reactor.run()
    assert guard.pending, "nobody stopped the reactor"
    reactor.close()


def test_timers_fire_in_order_and_cancelled_ones_do_not() -> None:
    reactor = Reactor()
    seen: list[str] = []
    dead = reactor.call_later(1.5 * SHORT_S, lambda: seen.append("dead"))

    def last() -> None:
        seen.append("c")
        reactor.stop()

    reactor.call_later(3 * SHORT_S, last)
    reactor.call_later(2 * SHORT_S, lambda: seen.append("b"))
    reactor.call_later(SHORT_S, lambda: seen.append("a"))
    reactor.call_later(SHORT_S, dead.cancel)
    began_s = reactor.now()
    _run(reactor)
    assert seen == ["a", "b", "c"]
    assert reactor.now() - began_s >= 3 * SHORT_S
    assert not dead.pending


def test_a_timer_that_arms_itself_starves_nobody() -> None:
    reactor = Reactor()
    left, right = seqpacket_pair()
    turns = 0

    def again() -> None:
        nonlocal turns
        turns += 1
        reactor.call_later(0, again)

    def arrived(_events: int) -> None:
        if turns > 100:
            reactor.stop()

    reactor.add(right.fileno(), arrived)
    left.send(b"x")
    again()
    _run(reactor)
    left.close()
    right.close()


def test_other_threads_and_signals_wake_it() -> None:
    reactor = Reactor()
    seen: list[int | str] = []
    before = signal.signal(signal.SIGUSR1, lambda *_: reactor.call_soon_threadsafe(lambda: seen.append("signal")))
    try:
        main = threading.get_ident()

        def other() -> None:
            for number in range(1000):
                reactor.call_soon_threadsafe(lambda number=number: seen.append(number))  # type: ignore[misc]
            signal.pthread_kill(main, signal.SIGUSR1)
            time.sleep(SHORT_S)
            reactor.call_soon_threadsafe(reactor.stop)

        thread = threading.Thread(target=other)
        thread.start()
        _run(reactor)
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert [entry for entry in seen if entry != "signal"] == list(range(1000))
    assert "signal" in seen


def test_a_callback_may_remove_and_close_another() -> None:
    """Both are ready in one turn; the first ends the second, whose event is then nobody's."""
    reactor, seen = Reactor(), []
    pairs = [seqpacket_pair() for _ in range(2)]

    def ready(which: int) -> None:
        seen.append(which)
        other = pairs[1 - which][1]
        reactor.remove(other.fileno())
        other.close()
        reactor.call_later(SHORT_S, reactor.stop)
        reactor.remove(pairs[which][1].fileno())

    for which in range(2):
        reactor.add(pairs[which][1].fileno(), lambda _events, which=which: ready(which))  # type: ignore[misc]
        pairs[which][0].send(b"x")
    _run(reactor)
    assert len(seen) == 1
    for pair in pairs:
        pair[0].close()
        pair[1].close()


def _copies_of_stdin() -> int:
    """How many descriptors of ours are what was sent; threads of earlier tests may open and close others."""
    sent = os.fstat(0)
    found = 0
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - the names alone
        with suppress(OSError):
            found += os.path.samestat(os.fstat(int(name)), sent)
    return found


def test_descriptors_come_whole_or_not_at_all() -> None:
    left, right = seqpacket_pair()
    before = _copies_of_stdin()
    send_now(left, b"one", [0])
    message, descriptors = receive_with_descriptors(right)
    assert (message, len(descriptors)) == (b"one", 1)
    os.close(descriptors[0])
    for many in (2, 4, 50):
        send_now(left, b"many", [0] * many)
        with pytest.raises(Exception, match="descriptors"):
            receive_with_descriptors(right)
    sockets.send_fds(left, [bytes(80_000)], [0])
    with pytest.raises(Exception, match="bytes"):
        receive_with_descriptors(right)
    assert _copies_of_stdin() == before
    with pytest.raises(BlockingIOError):
        receive_with_descriptors(right, flags=sockets.MSG_DONTWAIT)
    left.close()
    right.close()


def test_one_owner_at_a_time(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    first = SocketAddress(path, 1)
    with pytest.raises(AddressInUse, match="another process listens"):
        SocketAddress(path, 1)
    first.release()
    first.release()
    assert list(tmp_path.iterdir()) == []
    SocketAddress(path, 1).release()


def test_leftovers_of_a_dead_owner_are_cleaned(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with seqpacket() as dead:
        dead.bind(str(path))
    (tmp_path / "a.sock.lock").touch()
    address = SocketAddress(str(path), 1)
    assert oct(path.stat().st_mode & 0o777) == "0o600"
    address.release()


def test_what_others_own_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    path.write_text("mine")
    with pytest.raises(AddressInUse, match="another kind"):
        SocketAddress(str(path), 1)
    assert path.read_text() == "mine"
    path.unlink()
    with seqpacket() as alive:  # it knows nothing of our lock
        alive.bind(str(path))
        alive.listen(0)
        with pytest.raises(AddressInUse, match="listens"):
            SocketAddress(str(path), 1)
        assert path.exists()
    assert not (tmp_path / "a.sock.lock").exists()


@pytest.mark.parametrize("name", ["x" * 200, "no/such/folder.sock"])
def test_paths_that_cannot_be(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError):
        SocketAddress(str(tmp_path / name), 1)


def test_racing_owners_leave_one(tmp_path: Path) -> None:
    path = str(tmp_path / "a.sock")
    won: list[SocketAddress] = []
    lost: list[Exception] = []
    gate = threading.Barrier(16)

    def race() -> None:
        gate.wait()
        try:
            won.append(SocketAddress(path, 1))
        except AddressInUse as error:
            lost.append(error)

    threads = [threading.Thread(target=race) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 15)
    won[0].release()


def test_another_node_than_discovery_said() -> None:
    world = LocalWorld()
    try:
        for expect in (("echo", 99), ("other", 1)):
            with pytest.raises(StaleEpoch, match="discovery") as wrong:
                LocalChannel.open(world.node.path, 1, Deadline.after(5, time.monotonic()), expect=expect)
            assert wrong.value.fate is Fate.NEVER_RAN
    finally:
        world.close()
    with pytest.raises(Unavailable, match="no node listens"):
        LocalChannel.open(world.node.path, 1, Deadline.after(5, time.monotonic()))


def test_the_nodes_side_is_small() -> None:
    """The node's process loads neither numpy nor asyncio for its end of the wire."""
    words = "import sys, fabric.local.listener, fabric.local.reactor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True, timeout=30)
    assert {"numpy", "asyncio", "grpc", "ctypes"} & set(done.stdout.split()) == set()
