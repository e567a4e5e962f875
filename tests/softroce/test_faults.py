"""Every way in which RDMA between two hosts breaks: a named error in bounded time, a true fate, and a way back.

The caller is in guest 0, the node in guest 1; offers travel over the other network, which stays. Time limits are those
of an emulated machine beside busy ones: what is asserted is what happened, and that it did not take for ever.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import Fate, NodeLost, OverspillError
from tests.contract.world import BlockingCaller, Client, wait_until
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, FAULT_ACK, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.world import Bytes

pytestmark = pytest.mark.guests(2)
BROKEN_S = 20.0
"""The NIC gives a silent peer up after 1.9 s (tests/softroce/worlds.py); ten times that beside busy neighbours."""
TOLD_S = 1.5
"""A line's end travels in milliseconds; the NIC alone would need 1.9 s."""
AGAIN_S = 60.0
BACKGROUND = 6


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    settle()


@pytest.fixture(scope="module")
def shared() -> Iterator[RdmaWorld]:
    made = RdmaWorld(EVENTS_ONLY, FAULT_ACK)
    yield made
    made.close()


@pytest.fixture(scope="module")
def body() -> Bytes:
    return np.random.default_rng(7).integers(0, 256, 1 << 20, np.uint8)


@contextmanager
def loaded(world: RdmaWorld, body: Bytes) -> Iterator[tuple[Client, list[BaseException]]]:
    """A client with calls of 64 KiB in flight all the time until one fails, and what they failed with."""
    caller = BlockingCaller()
    with Client(world, caller) as client:
        client.flips(body[:1000])
        running = [client.start("run/30000/flip", body[: 64 << 10], timeout_s=60.0) for _ in range(BACKGROUND)]
        errors: list[BaseException] = []
        assert wait_until(lambda: client.arrived() > BACKGROUND), "they are on their way no more"
        yield client, errors
        for future in running:
            error = future.exception(BROKEN_S)
            assert error is not None
            errors.append(error)
        assert not client.channel.alive
    caller.close()


@contextmanager
def mended(node: int, *words: str) -> Iterator[None]:
    """Whatever happens, this is done at the end: the tests that follow are not to be blamed."""
    try:
        yield
    finally:
        here.run(node, *words)


def lost(errors: list[BaseException]) -> None:
    """All ended alike: the peer is lost, and what became of the requests is unknown."""
    assert len(errors) == BACKGROUND
    assert {type(error) for error in errors} == {NodeLost}, errors
    assert {error.fate for error in errors if isinstance(error, OverspillError)} == {Fate.UNKNOWN}


def serves_again(world: RdmaWorld, body: Bytes) -> None:
    """A new channel, as a link would open one."""
    caller = BlockingCaller()
    end_s = time.monotonic() + AGAIN_S
    while True:
        try:
            with Client(world, caller) as client:
                client.flips(body[:100])
                client.flips(body[: 300 << 10])
            break
        except OverspillError:
            assert time.monotonic() < end_s, "rdma did not come back"
            time.sleep(0.2)
    caller.close()


@pytest.mark.parametrize("where", [0, pytest.param(1, marks=pytest.mark.long)])
def test_the_cable_is_pulled(shared: RdmaWorld, body: Bytes, where: int) -> None:
    """At our end our own port tells; at the node's end its port tells the node, and the end of the line tells us."""
    with loaded(shared, body) as (_, errors):
        here.cable(where, up=False)
    lost(errors)
    here.cable(where, up=True)
    serves_again(shared, body)


def test_our_own_link_goes_down(shared: RdmaWorld, body: Bytes) -> None:
    with mended(0, "ip", "link", "set", "eth0", "up"), loaded(shared, body) as (_, errors):
        here.run(0, "ip", "link", "set", "eth0", "down")
    lost(errors)
    # Whichever comes first: the device's word, or that of a pair that was to send, which kernel 6.12 flushes only.
    words = ("PORT_ERR", "LOC_QP_OP", "WR_FLUSH_ERR")
    assert any(word in str(error) for error in errors for word in words), errors
    serves_again(shared, body)


@pytest.mark.long
def test_the_peers_link_goes_down(shared: RdmaWorld, body: Bytes) -> None:
    with mended(1, "ip", "link", "set", "eth0", "up"), loaded(shared, body) as (_, errors):
        here.run(1, "ip", "link", "set", "eth0", "down")
    lost(errors)
    serves_again(shared, body)


@pytest.mark.long
def test_our_address_goes(shared: RdmaWorld, body: Bytes) -> None:
    """And comes back under another index of the port's table."""
    with mended(0, "ip", "addr", "add", "10.77.0.1/24", "dev", "eth0"), loaded(shared, body) as (_, errors):
        here.run(0, "ip", "addr", "del", "10.77.0.1/24", "dev", "eth0")
    lost(errors)
    assert any("address" in str(error) or "LOC_QP_OP" in str(error) for error in errors), errors
    serves_again(shared, body)


@pytest.mark.parametrize("where", [pytest.param(0, marks=pytest.mark.long), 1])
def test_all_packets_of_one_side_are_lost(shared: RdmaWorld, body: Bytes, where: int) -> None:
    """Of the caller: its requests. Of the node: the acknowledgements and replies alone, so that requests did arrive.
    Nobody sends and nobody tells: that the peer is silent is found out by the pulse alone."""
    with loaded(shared, body) as (client, errors):
        here.run(where, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "100%", "limit", "100000")
        try:
            assert wait_until(lambda: not client.channel.alive)
        finally:
            here.run(where, "tc", "qdisc", "del", "dev", "eth0", "root")
    lost(errors)
    assert all("RETRY_EXC" in str(error) or "acknowledges nothing" in str(error) for error in errors), errors
    serves_again(shared, body)


@pytest.mark.long
def test_a_few_lost_packets_lose_nothing(shared: RdmaWorld, body: Bytes) -> None:
    here.run(0, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "loss", "0.5%", "limit", "100000")
    caller = BlockingCaller()
    try:
        with Client(shared, caller) as client:
            for step in range(30):
                client.flips(body[step : step + 4000], timeout_s=20.0)
    finally:
        caller.close()
        here.run(0, "tc", "qdisc", "del", "dev", "eth0", "root")


def test_the_peers_port_is_killed(body: Bytes) -> None:
    """Its line ends with it, so it is known at once, by whoever waits and by the next who asks."""
    world = RdmaWorld(EVENTS_ONLY, FAULT_ACK)
    with loaded(world, body) as (client, errors):
        world.node.wire.signal(signal.SIGKILL)
        began_s = time.monotonic()
        assert wait_until(lambda: not client.channel.alive)
        assert time.monotonic() - began_s < TOLD_S, "it was told, not found out"
        with pytest.raises(NodeLost) as gone:
            client.call("flip", body[:100], timeout_s=4.9)
        assert gone.value.fate is Fate.NEVER_RAN
    lost(errors)
    world.restart()
    serves_again(world, body)
    world.close()


@pytest.mark.long
def test_the_node_behind_the_port_is_killed(body: Bytes) -> None:
    """The port lives on, and knows at once that there is nobody to ask."""
    world = RdmaWorld(EVENTS_ONLY, FAULT_ACK)
    caller = BlockingCaller()
    with Client(world, caller) as client:
        client.flips(body[:1000])
        running = client.start("run/30000/flip", body[:1000], timeout_s=60.0)
        time.sleep(0.5)
        world.node.echo.signal(signal.SIGKILL)
        error = running.exception(BROKEN_S)
    assert isinstance(error, OverspillError)
    assert error.fate is Fate.UNKNOWN
    caller.close()
    world.restart()
    serves_again(world, body)
    world.close()


@pytest.mark.long
def test_an_idle_connection_costs_nothing(shared: RdmaWorld, body: Bytes) -> None:
    caller = BlockingCaller()
    with Client(shared, caller) as client:
        client.flips(body[: 64 << 10])
        assert wait_until(lambda: not shared.engine.awaited)
        time.sleep(0.5)
        polls, began_s, cpu_s = shared.engine.polls, time.monotonic(), time.process_time()
        time.sleep(3.0)
        assert shared.engine.polls - polls <= 4
        assert (time.process_time() - cpu_s) / (time.monotonic() - began_s) < 0.05, "emulated CPU; 0.01 on a real one"
        client.flips(body[: 64 << 10])
    caller.close()


@pytest.mark.long
@pytest.mark.parametrize("cycles", [10, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_opening_and_closing_leaves_nothing(shared: RdmaWorld, body: Bytes, cycles: int) -> None:
    serves_again(shared, body)
    settle()
    before = [_resources(node) for node in (0, 1)]
    caller = BlockingCaller()
    for _ in range(cycles):
        with Client(shared, caller) as client:
            client.flips(body[:100])
        time.sleep(0.05)  # a caller may ask ten times a second
    caller.close()
    settle()
    assert wait_until(lambda: [_resources(node) for node in (0, 1)] == before, BROKEN_S), (before, _resources(1))


@pytest.mark.long
@pytest.mark.leaks("the killed guest's end of the world is restarted with it")
def test_the_other_guest_dies(body: Bytes) -> None:
    """The last one: what other tests share lived in that guest too."""
    world = RdmaWorld(EVENTS_ONLY, FAULT_ACK)
    with loaded(world, body) as (_, errors):
        here.ask("kill", 1)
    lost(errors)
    here.ask("restart", 1)
    world.node.start()
    serves_again(world, body)
    world.close()


def _resources(node: int) -> str:
    """What the kernel counts: queue pairs, regions, completion queues, domains of all processes."""
    return here.run(node, "rdma", "res", "show")
