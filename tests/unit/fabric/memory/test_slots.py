"""The table of slots, against a model that remembers everything: nothing is lent twice, nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from fabric.errors import ArenaFull, ResourceExhausted
from fabric.memory.slots import SLOT_BYTES_MIN, Slot, SlotState, SlotTable

ARENA = 64 * SLOT_BYTES_MIN


class Slots(RuleBasedStateMachine):
    """Holders take and give back, writers begin and end, in any order that is allowed."""

    held = Bundle("held")
    writing = Bundle("writing")

    def __init__(self) -> None:
        super().__init__()
        self.table = SlotTable(ARENA)
        self.busy: dict[Slot, list[int]] = {}  # slot: [held, writers]
        self.generation = 0

    @rule(target=held, nbytes=st.integers(0, ARENA + 1))
    def lease(self, nbytes: int) -> object:
        try:
            slot = self.table.lease(nbytes)
        except ResourceExhausted:
            self._really_full(nbytes)
            return multiple()
        assert slot.nbytes >= max(nbytes, SLOT_BYTES_MIN)
        assert slot.nbytes == SLOT_BYTES_MIN or slot.nbytes < 2 * nbytes
        assert slot.offset % slot.nbytes == 0
        assert slot.offset + slot.nbytes <= ARENA
        assert slot.generation > self.generation
        assert slot.state is SlotState.LEASED
        self.generation = slot.generation
        for other in self.busy:
            apart = other.offset + other.nbytes <= slot.offset or slot.offset + slot.nbytes <= other.offset
            assert apart, f"{slot} overlaps {other}"
        self.busy[slot] = [1, 0]
        return slot

    def _really_full(self, nbytes: int) -> None:
        size = max(SLOT_BYTES_MIN, 1 << max(nbytes - 1, 0).bit_length())
        if size > ARENA:
            return
        for start in range(0, ARENA, size):
            free = all(o.offset + o.nbytes <= start or start + size <= o.offset for o in self.busy)
            assert not free, f"{size} bytes at {start} are free, and were refused"

    @rule(slot=consumes(held))
    def give_back(self, slot: Slot) -> None:
        self.table.give_back(slot)
        self.busy[slot][0] = 0
        self._drop_if_free(slot)

    @rule(target=writing, slot=held)
    def writer_begins_on_a_held_slot(self, slot: Slot) -> Slot:
        self.table.writer_began(slot)
        self.busy[slot][1] += 1
        return slot

    @rule(slot=consumes(writing))
    def writer_ends(self, slot: Slot) -> None:
        self.table.writer_ended(slot)
        self.busy[slot][1] -= 1
        self._drop_if_free(slot)

    def _drop_if_free(self, slot: Slot) -> None:
        if self.busy[slot] == [0, 0]:
            del self.busy[slot]
            assert slot.state is SlotState.FREE

    @invariant()
    def sums_and_states_agree(self) -> None:
        quarantined = [slot for slot, (held, writers) in self.busy.items() if not held and writers]
        assert self.table.lent_bytes == sum(slot.nbytes for slot in self.busy)
        assert self.table.quarantined_bytes == sum(slot.nbytes for slot in quarantined)
        for slot, (held, writers) in self.busy.items():
            state = SlotState.BUSY if held and writers else SlotState.LEASED if held else SlotState.QUARANTINED
            assert slot.state is state

    def teardown(self) -> None:
        for slot, (held, writers) in list(self.busy.items()):
            for _ in range(writers):
                self.table.writer_ended(slot)
            if held:
                self.table.give_back(slot)
        assert self.table.lease(ARENA).nbytes == ARENA, "everything came back, and joins to one whole"


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_the_last_given_back_is_the_first_lent() -> None:
    table = SlotTable(ARENA)
    slots = [table.lease(SLOT_BYTES_MIN) for _ in range(4)]
    table.give_back(slots[2])
    assert table.lease(1).offset == slots[2].offset


def test_misuse_is_our_bug() -> None:
    table = SlotTable(ARENA)
    slot = table.lease(1)
    with pytest.raises(AssertionError, match="no writer"):
        table.writer_ended(slot)
    table.give_back(slot)
    with pytest.raises(AssertionError, match="twice"):
        table.give_back(slot)
    with pytest.raises(AssertionError, match="free slot"):
        table.writer_began(slot)


def test_a_refusal_says_what_holds_the_arena() -> None:
    table = SlotTable(ARENA)
    slot = table.lease(ARENA)
    table.writer_began(slot)
    table.give_back(slot)
    with pytest.raises(ResourceExhausted, match=f"{ARENA} wait for a writer"):
        table.lease(1)
    with pytest.raises(ResourceExhausted, match=r"raise RouterConfig\.arena_bytes"):
        table.lease(ARENA + 1)


def test_small_loans_leave_the_upper_half_to_a_large_one_that_found_no_room() -> None:
    """Small loans go on and on in both halves, and the best fit for each is beside its neighbour in the upper one."""
    table = SlotTable(ARENA)
    slots = [table.lease(SLOT_BYTES_MIN) for _ in range(ARENA // SLOT_BYTES_MIN)]
    half = len(slots) // 2
    kept = [slot for slot in slots[:half] if slot.offset // SLOT_BYTES_MIN % 4 < 2]
    current = slots[half]
    for slot in slots:
        if slot not in kept and slot is not current:
            table.give_back(slot)
    for _ in range(4):
        with pytest.raises(ArenaFull) as full:
            table.lease(ARENA // 2)
        assert full.value.needed_bytes == ARENA // 2
        following = table.lease(SLOT_BYTES_MIN)
        table.give_back(current)
        current = following
        if current.offset < ARENA // 2:
            break
    table.lease(ARENA // 2)
