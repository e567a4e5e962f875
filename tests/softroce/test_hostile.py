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
from fabric.memory.arena import Arena
from fabric.rdma.channel import RdmaChannel
from fabric.rdma.terms import pack_terms, read_terms
from tests.contract.world import BlockingCaller, Client
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.deadline import Deadline
    from fabric.rdma.heads import RegionNote
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

    def bootstrap(offer: bytes, deadline: Deadline) -> bytes:
        terms = read_terms(world.bootstrap(offer, deadline))
        return pack_terms(replace(terms, region=lie(terms.region)))

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

    def bootstrap(offer: bytes, deadline: Deadline) -> bytes:
        return world.bootstrap(pack_terms(replace(read_terms(offer), node_epoch=999)), deadline)

    with pytest.raises(StaleEpoch):
        RdmaChannel.open(world.engine, bootstrap, 4712, world.deadline(15.0), None, Arena.create(8 << 20))


@pytest.mark.parametrize("offers", [40, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_garbage_in_the_offer_leaves_nothing_behind(world: RdmaWorld, body: Bytes, offers: int) -> None:
    """Bytes changed, cut and added: refused in a typed error, no queue pair remains, and good callers are served."""
    caught: list[bytes] = []

    def bootstrap(offer: bytes, deadline: Deadline) -> bytes:
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
        answer = world.bootstrap(bytes(offer), world.deadline(15.0))
        assert answer[:4] != caught[0][:4], "garbage was taken for an offer"
    assert here.run(0, "rdma", "res", "show") == before
    time.sleep(1.0)
    caller = BlockingCaller()
    with Client(world, caller) as client:
        client.flips(body[:1000])
    caller.close()
