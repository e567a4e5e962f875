"""No slot is used again while somebody may still write to it, and without that rule this test would fail.

A request is given up while the node is in the middle of writing its reply. A hundred callers then want a slot of that
size at once. Only the local wire has slots that another process writes to.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import DeadlineExceeded, NodeLost, ResourceExhausted
from fabric.local.channel import LocalChannel
from fabric.local.exchange import Places
from fabric.memory.slots import SlotTable
from tests.contract.local_world import LocalWorld
from tests.contract.world import CALLERS, Bytes, Client, bytes_of, check_flipped, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.world import Caller

NBYTES = 256 << 10
PIECES, GAP_MS = 10, 20
SLOW_GAP_MS = 100
"""Where a test wants the dead writer to hit somebody, a hundred callers must find the time to take its slot."""
CALLERS_MANY = 100


@pytest.fixture(scope="module")
def echo_world() -> Iterator[LocalWorld]:
    world = LocalWorld()
    yield world
    world.close()


@pytest.fixture
def fence_client(echo_world: LocalWorld, caller: Caller) -> Iterator[Client]:
    with Client(echo_world, caller) as client:
        yield client


def _give_up_mid_write(client: Client, how: str, data: Bytes, place: str = "lease", gap_ms: int = GAP_MS) -> None:
    """Starts a reply that is written over ten gaps, and leaves after 50 ms."""
    reply_bytes = data.nbytes if place == "lease" else 0
    call = client.request(f"dribble/{PIECES}/{gap_ms}", data, place, None, reply_bytes)
    timeout_s = 0.05 if how == "late" else 10.0
    future = client.caller.start(client.channel, call, client.world.deadline(timeout_s))
    if how == "cancelled":
        threading.Event().wait(0.05)
        assert future.cancel()
    else:
        with pytest.raises(DeadlineExceeded):
            future.result(5)


def _want_the_slot(client: Client) -> list[Bytes]:
    """A hundred replies of that size, all held at once."""
    held: list[Bytes] = []

    def work() -> None:
        held.append(bytes_of(client.call(f"grow/{NBYTES}", np.zeros(64, np.uint8), reply_bytes=NBYTES)))

    threads = [threading.Thread(target=work) for _ in range(CALLERS_MANY)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(held) == CALLERS_MANY
    return held


def _round(client: Client, how: str, gap_ms: int = GAP_MS) -> int:
    """Bytes that are not what the node answered, after every writer has ended."""
    _give_up_mid_write(client, how, np.zeros(NBYTES, np.uint8), gap_ms=gap_ms)
    held = _want_the_slot(client)
    assert wait_until(lambda: _settled(client))
    threading.Event().wait(PIECES * gap_ms / 1e3)  # where nothing is fenced, nothing tells when the writer ends
    return sum(int(np.count_nonzero(reply != 7)) for reply in held)


def _settled(client: Client) -> bool:
    client.call("echo", np.zeros(64, np.uint8))  # looks after those that were given up
    return not client.channel.zombies  # type: ignore[attr-defined]


@pytest.mark.parametrize("how", ["late", "cancelled"])
def test_the_slot_waits_for_its_writer(fence_client: Client, how: str) -> None:
    if how == "cancelled" and type(fence_client.caller) is CALLERS["blocking"]:
        pytest.skip("a blocking call is given up by its deadline, or by an interrupt (see test_cancel)")
    for _ in range(3):
        assert _round(fence_client, how) == 0
    arena = fence_client.channel.arena
    assert arena is not None
    assert arena.table.quarantined_bytes == 0


@pytest.mark.parametrize("how", ["late", "cancelled"])
def test_without_the_fence_bytes_are_wrong(fence_client: Client, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail: where nobody holds slots and writers, the dead request writes into a living one."""
    if how == "cancelled" and type(fence_client.caller) is CALLERS["blocking"]:
        pytest.skip("a blocking call is given up by its deadline, or by an interrupt (see test_cancel)")
    monkeypatch.setattr(SlotTable, "writer_began", lambda _self, _slot: None)
    monkeypatch.setattr(SlotTable, "writer_ended", lambda _self, _slot: None)
    monkeypatch.setattr(Places, "leave_reply", lambda _self: None)
    assert any(_round(fence_client, how, SLOW_GAP_MS) for _ in range(10))


def test_small_slots_wait_as_well(fence_client: Client, pool: Bytes) -> None:
    """Small calls use slots that their socket keeps for itself, and the socket waits with them."""
    _give_up_mid_write(fence_client, "late", pool[:8192], "bytes")
    running = [fence_client.start("run/150/flip", pool[number : number + 8192]) for number in range(CALLERS_MANY)]
    for number, future in enumerate(running):
        check_flipped(future.result(20), pool[number : number + 8192])


def test_an_input_waits_for_its_reader(fence_client: Client, pool: Bytes) -> None:
    """A lease that its holder gives back too early is not lent again while the node reads it."""
    data = pool[:NBYTES]
    before = fence_client.arrived()
    call = fence_client.request("run/400/flip", data, "lease")
    future = fence_client.caller.start(fence_client.channel, call, fence_client.world.deadline(30))
    assert wait_until(lambda: fence_client.arrived() > before)
    assert not isinstance(call.body.memory, bytes)
    call.body.memory.release()
    _want_the_slot(fence_client)
    check_flipped(future.result(30), data)


def test_a_lost_session_lends_nothing_any_more(caller: Caller, pool: Bytes) -> None:
    world = LocalWorld()
    try:
        with Client(world, caller) as client:
            arena = client.channel.arena
            assert arena is not None
            running = client.start("run/10000/flip", pool[:NBYTES], 20)
            assert wait_until(lambda: client.arrived() >= 1)
            world.kill()
            with pytest.raises(NodeLost):
                running.result(20)
            with pytest.raises(ResourceExhausted, match="gone"):
                arena.lease(64)
    finally:
        world.close()


def test_many_sockets_leave_room_in_a_small_arena(echo_world: LocalWorld, pool: Bytes) -> None:
    """Each socket keeps small slots for itself; a hundred of them leave most of an arena of 4 MiB for others."""
    caller = CALLERS["blocking"]()
    channel = LocalChannel.open(echo_world.node.path, 5, echo_world.deadline(5), arena_bytes=4 << 20)
    try:
        client = Client(echo_world, caller, channel)
        running = [client.start("run/300/flip", pool[number : number + 3000]) for number in range(100)]
        for number, future in enumerate(running):
            check_flipped(future.result(20), pool[number : number + 3000])
        client.flips(pool[: 64 << 10])
        client.flips(pool[: 256 << 10])
        client.close()
    finally:
        caller.close()
