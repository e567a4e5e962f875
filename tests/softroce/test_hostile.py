"""A peer that does not keep to what was agreed harms its own connection, and nobody else's.

The hostile ends here are our own caller, told lies about the node's memory, and offers that were tampered with on the
way. What the node lends, its NIC guards: a domain and a region for each connection.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import OverspillError
from fabric.frame import NO_SLOT, pack_request
from fabric.memory.arena import Arena
from fabric.rdma.channel import RdmaChannel
from fabric.rdma.heads import REGION, HeadKind
from fabric.rdma.talk import Message
from fabric.rdma.terms import pack_terms, read_terms
from tests.contract.world import BlockingCaller, Client, layout_for, wait_until
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.deadline import Deadline
    from fabric.rdma.heads import RegionNote
    from fabric.rdma.line import Line
    from tests.contract.world import Bytes

pytestmark = pytest.mark.guests(1)
OFFER_PAUSE_S = 0.11
"""A caller may make ten offers a second."""
LIES: dict[str, Callable[[RegionNote], RegionNote]] = {
    "another key": lambda note: note._replace(rkey=note.rkey ^ 0x5A),
    "a neighbour's key": lambda note: note._replace(rkey=note.rkey - (1 << 8)),
    "below the region": lambda note: note._replace(base=note.base - (1 << 20)),
    "behind the region": lambda note: note._replace(base=note.base + note.nbytes),
}


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    settle()


@pytest.fixture(scope="module")
def world() -> Iterator[RdmaWorld]:
    made = RdmaWorld(EVENTS_ONLY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def body() -> Bytes:
    return np.random.default_rng(8).integers(0, 256, 1 << 20, np.uint8)


def open_lied_to(world: RdmaWorld, lie: Callable[[RegionNote], RegionNote]) -> RdmaChannel:
    """A caller that believes something else of the node's region than the node said."""

    def bootstrap(offer: bytes, deadline: Deadline) -> tuple[bytes, Line]:
        answer, line = world.bootstrap(offer, deadline)
        terms = read_terms(answer)
        return pack_terms(replace(terms, region=lie(terms.region))), line

    deadline = world.deadline(15.0)
    return RdmaChannel.open(world.engine, bootstrap, 4711, deadline, None, Arena.create(8 << 20))


@pytest.mark.parametrize("lie", LIES)
def test_writes_that_were_not_agreed_end_one_connection(world: RdmaWorld, body: Bytes, lie: str) -> None:
    caller = BlockingCaller()
    with Client(world, caller, client_id=1) as neighbour:
        neighbour.flips(body[: 64 << 10])
        with pytest.raises(OverspillError):  # when it opens, or at its first large call
            _ask_as_liar(world, caller, lie, body)
        neighbour.flips(body[: 64 << 10])
    assert world.serves()
    with Client(world, caller, client_id=2) as later:
        later.flips(body[:1000])
    caller.close()


def _ask_as_liar(world: RdmaWorld, caller: BlockingCaller, lie: str, body: Bytes) -> None:
    with Client(world, caller, open_lied_to(world, LIES[lie]), client_id=4711) as liar:
        liar.call("flip", body[: 64 << 10], timeout_s=4.9)


def test_a_stale_epoch_is_refused(world: RdmaWorld) -> None:
    from fabric.errors import StaleEpoch

    def bootstrap(offer: bytes, deadline: Deadline) -> tuple[bytes, Line]:
        return world.bootstrap(pack_terms(replace(read_terms(offer), node_epoch=999)), deadline)

    with pytest.raises(StaleEpoch):
        RdmaChannel.open(world.engine, bootstrap, 4712, world.deadline(15.0), None, Arena.create(8 << 20))


@pytest.mark.parametrize("offers", [40, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_garbage_in_the_offer_leaves_nothing_behind(world: RdmaWorld, body: Bytes, offers: int) -> None:
    """Bytes changed, cut and added: refused in a typed error, no queue pair remains, and good callers are served."""
    caught: list[bytes] = []

    def bootstrap(offer: bytes, deadline: Deadline) -> tuple[bytes, Line]:
        caught.append(offer)
        return world.bootstrap(offer, deadline)

    deadline = world.deadline(15.0)
    RdmaChannel.open(world.engine, bootstrap, 4713, deadline, None, Arena.create(8 << 20)).close(world.deadline(1.0))
    settle()
    time.sleep(1.0)
    before = here.run(0, "rdma", "res", "show")
    random = np.random.default_rng(9)
    for number in range(offers):
        offer = bytearray(caught[0])
        for _ in range(int(random.integers(1, 4))):
            offer[int(random.integers(0, len(offer)))] ^= int(random.integers(1, 256))
        if number % 3 == 1:
            del offer[int(random.integers(0, len(offer))) :]
        if number % 3 == 2:
            offer += bytes(int(random.integers(1, 2000)))
        answer, line = world.bootstrap(bytes(offer), world.deadline(15.0))
        line.close()
        assert answer[:4] != caught[0][:4], "garbage was taken for an offer"
    assert here.run(0, "rdma", "res", "show") == before
    time.sleep(1.0)
    caller = BlockingCaller()
    with Client(world, caller) as client:
        client.flips(body[:1000])
    caller.close()


def _frame(body_offset: int, body_bytes: int, model: str = "flip", layout: bytes | None = None) -> bytes:
    """A request as a caller that lies about its body sends it."""
    encoded = layout_for(1000).encoded if layout is None else layout
    return pack_request(4711, 1, 1, 10_000_000, 0, body_offset, body_bytes, NO_SLOT, 0, 1, 1, model, encoded)


def _sends(channel: RdmaChannel, frame: bytes) -> None:
    channel._connection.send(HeadKind.FRAME, frame)


def _writes(channel: RdmaChannel, body_offset: int, body_bytes: int) -> None:
    """A true write to a place that was lent, and a frame that says it lies elsewhere."""
    connection, note = channel._connection, channel._calls.memory._lent().note
    message = Message(HeadKind.FRAME, _frame(body_offset, body_bytes), region=note.number)
    connection.write(connection._pairs.nothing, note, note.window_at, note.window_at, message, lambda: None)


def _skips_a_message(channel: RdmaChannel) -> None:
    channel._connection._talk._sent[0] += 1
    channel._connection.send(HeadKind.CREDIT, control=True)


def _speaks_of_another_life(channel: RdmaChannel) -> None:
    channel._connection._talk.epoch ^= 1
    channel._connection.send(HeadKind.CREDIT, control=True)


def _gives_credit_that_nobody_used(channel: RdmaChannel) -> None:
    channel._connection._talk.bulk._arrived += 1000
    channel._connection.send(HeadKind.CREDIT, control=True)


def _asks_twice(channel: RdmaChannel) -> None:
    layout = layout_for(64).encoded
    frame = pack_request(4711, 1, 1, 10_000_000, 0, NO_SLOT, 64, NO_SLOT, 0, 1, 1, "run/3000/flip", layout)
    for _ in range(2):
        _sends(channel, frame + bytes(64))


MISDEEDS: dict[str, Callable[[RdmaChannel], None]] = {
    "a body of 2^62 bytes": lambda channel: _sends(channel, _frame(NO_SLOT, 1 << 62)),
    "a body that is cut": lambda channel: _sends(channel, _frame(NO_SLOT, layout_for(1000).body_bytes) + bytes(10)),
    "a written body of 2^62 bytes": lambda channel: _writes(channel, 0, 1 << 62),
    "a body before the room that is lent": lambda channel: _writes(channel, 1 << 62, layout_for(1000).body_bytes),
    "tensors that overflow": lambda channel: _sends(channel, _frame(NO_SLOT, 8, layout=bytes([255]) * 40)),
    "another life's link epoch": _speaks_of_another_life,
    "a message left out": _skips_a_message,
    "credit for what was not sent": _gives_credit_that_nobody_used,
    "one request twice": _asks_twice,
    "a region that it has not": lambda channel: channel._connection.post(Message(HeadKind.LEFT, note=99)),
    "a word for callers": lambda channel: channel._connection.post(Message(HeadKind.TAKEN, note=1)),
    "a region for replies that cannot be": lambda channel: channel._connection.post(
        Message(HeadKind.REGION, REGION.pack(2, (1 << 64) - 4096, 1 << 30, 5, 0, 0, 0))
    ),
}


LONG_FORM = frozenset(
    {
        "a body that is cut", "tensors that overflow", "a message left out", "one request twice",
        "a region that it has not", "a word for callers", "a region for replies that cannot be",
    }
)  # fmt: skip
"""Two seconds each on an emulated machine: `make test` has time for one of each kind."""


@pytest.mark.parametrize(
    "misdeed", [pytest.param(each, marks=pytest.mark.long if each in LONG_FORM else ()) for each in MISDEEDS]
)
def test_what_was_not_agreed_ends_one_connection(world: RdmaWorld, body: Bytes, misdeed: str) -> None:
    caller = BlockingCaller()
    with Client(world, caller, client_id=1) as neighbour:
        neighbour.flips(body[: 64 << 10])
        channel = RdmaChannel.open(world.engine, world.bootstrap, 4711, world.deadline(15.0))
        MISDEEDS[misdeed](channel)
        assert wait_until(lambda: not channel.alive), "it was let pass"
        channel.abort("over")
        neighbour.flips(body[: 64 << 10])
    caller.close()
    assert world.serves()
    time.sleep(OFFER_PAUSE_S)
