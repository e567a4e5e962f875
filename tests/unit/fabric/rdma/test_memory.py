"""Places at the node, kept replies, the pinned budget: nothing is lent twice, nothing is forgotten."""

from __future__ import annotations

import os
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fabric.dtypes import DType
from fabric.errors import ArenaFull, Fate, ProtocolError, ResourceExhausted
from fabric.frame import Load
from fabric.layout import TensorSpec, layout_of
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.rdma.budget import Budget
from fabric.rdma.domain import Use
from fabric.rdma.heads import RegionNote
from fabric.rdma.kept import HELD_S, OWED_S, Kept
from fabric.rdma.populate import populate
from fabric.rdma.registered import Registered, address_of
from fabric.rdma.window import Place, Windows
from fabric.transport import Answer, WireName

LAYOUT = layout_of((TensorSpec.of("x", DType.UINT8, (128,)),))
KIB = 1024


def _region(number: int, window_bytes: int = 256 * KIB, window_at: int = 512 * KIB) -> RegionNote:
    return RegionNote(number, 1 << 32, 1024 * KIB, 5, window_at, window_bytes, 0)


@pytest.mark.parametrize("seed", range(4))
def test_no_place_is_lent_twice(seed: int) -> None:
    random = Random(seed)
    windows = Windows(_region(1))
    held: list[Place] = []
    for _ in range(2000):
        if held and random.random() < 0.5:
            place = held.pop(random.randrange(len(held)))
            assert windows.give_back(place.note.number, place.offset) is None
            continue
        try:
            place = windows.take(random.randrange(1, 64 * KIB))
        except ArenaFull:
            continue
        for other in held:
            assert place.offset + place.nbytes <= other.offset or other.offset + other.nbytes <= place.offset
        assert 512 * KIB <= place.offset <= 768 * KIB - place.nbytes
        held.append(place)
    for place in held:
        windows.give_back(place.note.number, place.offset)
    assert windows.lent_bytes == 0


def test_a_region_is_left_when_its_last_place_comes_back() -> None:
    windows = Windows(_region(1))
    first, second = windows.take(10), windows.take(10)
    assert windows.replace(_region(2, 512 * KIB)) is None
    assert windows.take(300 * KIB).note.number == 2
    assert windows.give_back(1, first.offset) is None
    assert windows.give_back(1, second.offset) == 1
    assert windows.replace(_region(3)) is None  # a place of the second is out


def test_a_region_that_nobody_uses_is_left_at_once() -> None:
    assert Windows(_region(1)).replace(_region(2)) == 1


@pytest.mark.parametrize(("number", "offset"), [(1, 0), (2, 512 * KIB), (1, 512 * KIB)])
def test_a_place_that_is_not_lent_cannot_be_given_back(number: int, offset: int) -> None:
    with pytest.raises(ProtocolError):
        Windows(_region(1)).give_back(number, offset)


def test_a_node_that_lends_no_room_is_refused() -> None:
    with pytest.raises(ProtocolError):
        Windows(_region(1, 0))
    with pytest.raises(ProtocolError, match="before"):
        Windows(_region(1)).replace(_region(1))


def _answer(arena: Arena) -> Answer:
    return Answer(LAYOUT, Lease.of(arena, 128), 1, 0, 0, Load(0, 0, 0, 0), WireName.LOCAL)


def test_a_kept_reply_holds_its_slot_until_it_is_acknowledged() -> None:
    arena, kept = Arena.create(64 * KIB), Kept()
    kept.keep(7, _answer(arena), 0.0)
    kept.acknowledge(7, 1.0)
    assert kept.find(7) is not None
    assert arena.lent_bytes() == 4096
    kept.acknowledge(8, 1.0)
    assert kept.find(7) is None
    assert arena.lent_bytes() == 0
    arena.close_fd()


def test_a_kept_reply_is_let_go_when_the_node_has_forgotten_it() -> None:
    arena, kept = Arena.create(64 * KIB), Kept()
    kept.keep(7, _answer(arena), 0.0)
    kept.acknowledge(0, HELD_S - 0.1)
    assert len(kept) == 1
    kept.acknowledge(0, HELD_S + 0.1)
    assert arena.lent_bytes() == 0
    arena.close_fd()


def test_a_reply_whose_caller_was_told_its_size_waits_for_it() -> None:
    arena, kept = Arena.create(64 * KIB), Kept()
    kept.keep(7, _answer(arena), 0.0)
    kept.keep(8, _answer(arena), 0.0)
    kept.owe(7, 1.0)
    assert kept.give_up(1.0 + OWED_S - 0.1) == 1
    assert kept.find(7) is not None  # and is owed no longer: it is on its way
    assert kept.give_up(1.0 + OWED_S - 0.1) == 1
    kept.keep(9, _answer(arena), 2.0)
    kept.owe(9, 2.0)
    assert kept.give_up(2.0 + OWED_S - 0.1) == 0
    assert kept.give_up(2.0 + OWED_S) == 1  # whoever was told has given up
    assert arena.lent_bytes() == 0
    arena.close_fd()


def test_a_reply_that_was_given_up_is_refused_with_its_fate() -> None:
    arena, kept = Arena.create(64 * KIB), Kept()
    kept.keep(7, _answer(arena), 0.0)
    assert kept.give_up(0.0) == 1
    assert arena.lent_bytes() == 0
    fate = None
    try:
        kept.find(7)
    except ResourceExhausted as refused:  # pytest would keep the traceback, and with it the arena
        fate = refused.fate
    assert fate is Fate.RAN
    kept.acknowledge(8, 0.0)
    assert kept.find(7) is None
    arena.close_fd()


def test_small_replies_need_no_slot() -> None:
    kept = Kept()
    kept.keep(7, Answer(LAYOUT, b"x" * 128, 1, 0, 0, Load(0, 0, 0, 0), WireName.LOCAL), 0.0)
    assert len(kept) == 0


def test_a_budget_is_never_passed_and_says_so() -> None:
    budget = Budget(100)
    budget.take(60)
    assert budget.has_room(40)
    assert not budget.has_room(41)
    with pytest.raises(ResourceExhausted, match="pinned_bytes_max"):
        budget.take(41)
    budget.take(40)
    budget.give_back(60)
    assert (budget.pinned_bytes, budget.regions) == (40, 1)
    assert Budget().pinned_bytes_max > 1 << 20


def _there_bytes(arena: Arena) -> int:
    return os.fstat(arena.fd).st_blocks * 512


def test_memory_is_there_before_it_is_registered() -> None:
    """The NIC's driver would make its pages with the interpreter's lock held."""
    arena, found = Arena.create(4 << 20), list[int]()

    def register(*_: object) -> object:
        found.append(_there_bytes(arena))
        return SimpleNamespace(lkey=1, rkey=2, close=lambda: None)

    half, device = arena.nbytes // 2, cast("Any", SimpleNamespace(register=register))
    Registered(device, Budget(1 << 30), address_of(arena.map) + half, half, Use.WRITTEN).close()
    assert found == [half]
    arena.close_fd()


def test_where_pages_cannot_be_made_nothing_is_told() -> None:
    populate(0, 4 << 20)
