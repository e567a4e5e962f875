"""Which parts of an arena are on loan, and who may still write to them.

A slot is reused only when its holder has given it back *and* every writer that could hold it has answered or is fenced:
a caller's timeout, cancel or death alone frees nothing. Its state follows from those two facts:

    held | writers | state
    no   | none    | FREE
    yes  | none    | LEASED
    yes  | some    | BUSY
    no   | some    | QUARANTINED

Places come from a buddy scheme: sizes are powers of two, the last one given back is the first one lent again (its pages
are there and warm), and halves are joined only when nothing fits. What is lent then, for a while, comes from the lowest
places, so that small loans that go on and on gather there, and a large one that waits finds the upper ones whole. This
module never touches memory and takes no lock: `fabric/memory/arena.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum
from typing import Final

from fabric.errors import ArenaFull

SLOT_BYTES_MIN: Final = 4096
"""One page: smaller slots would share a page, so that a hole in one would be a hole in its neighbour."""
GATHERED: Final = 64
"""Loans that are taken from the lowest places after one found none: who waits asks again much sooner than that."""


class SlotState(Enum):
    """What a slot is to its arena; see the module's table."""

    FREE = "free"
    LEASED = "leased"
    BUSY = "busy"
    QUARANTINED = "quarantined"


class Slot:  # mutable: one object per place in use, changed by its table only
    """A place of an arena: `offset` and `nbytes` (a power of two). `generation` counts its loans."""

    __slots__ = ("generation", "held", "nbytes", "offset", "writers")

    def __init__(self, offset: int, nbytes: int, generation: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.generation = generation
        self.held = True
        self.writers = 0

    @property
    def state(self) -> SlotState:
        """The state that holder and writers give."""
        if self.held:
            return SlotState.BUSY if self.writers else SlotState.LEASED
        return SlotState.QUARANTINED if self.writers else SlotState.FREE

    def __repr__(self) -> str:
        return (
            f"<Slot {self.state.value} {self.nbytes}@{self.offset} generation {self.generation} writers {self.writers}>"
        )


class SlotTable:
    """The slots of one arena of `arena_bytes`, a power of two of at least one page. `remedy` is what gives its tenant
    a larger one."""

    def __init__(self, arena_bytes: int) -> None:
        assert arena_bytes >= SLOT_BYTES_MIN, "an arena holds at least one page"
        assert arena_bytes & (arena_bytes - 1) == 0, "an arena's size is a power of two"
        self.arena_bytes = arena_bytes
        self.lent_bytes = 0
        self.quarantined_bytes = 0
        self.remedy = "raise RouterConfig.arena_bytes"
        self._generation = self._gathering = 0
        self._free: dict[int, list[int]] = {size: [] for size in _sizes(arena_bytes)}
        self._free[arena_bytes].append(0)

    def lease(self, nbytes: int) -> Slot:
        """Lends a slot of at least `nbytes`. Raises ArenaFull, saying what holds it, when none is free."""
        size = max(SLOT_BYTES_MIN, 1 << max(nbytes - 1, 0).bit_length())
        if size > self.arena_bytes:
            raise ArenaFull(
                f"{nbytes} bytes do not fit the arena of {self.arena_bytes}; split the request, or {self.remedy}",
                needed_bytes=size,
            )
        offset = self._take(size) if not self._gathering else self._take_lowest(size)
        if offset is None:
            self._join()
            offset = self._take(size)
        if offset is None:
            self._gathering = GATHERED
            waiting = f", {self.quarantined_bytes} wait for a writer" if self.quarantined_bytes else ""
            raise ArenaFull(
                f"no {size} bytes are free in the arena: {self.lent_bytes} of {self.arena_bytes} are on loan{waiting};"
                f" {self.remedy}",
                needed_bytes=size,
            )
        self._generation += 1
        self.lent_bytes += size
        return Slot(offset, size, self._generation)

    def give_back(self, slot: Slot) -> None:
        """The holder is done with the slot; it stays quarantined while a writer may still hold it."""
        assert slot.held, f"given back twice: {slot}"
        slot.held = False
        if slot.writers:
            self.quarantined_bytes += slot.nbytes
        else:
            self._free_now(slot)

    def writer_began(self, slot: Slot) -> None:
        """Somebody outside was told of the slot and may write to it from now on."""
        assert slot.held or slot.writers, f"a writer on a free slot: {slot}"
        slot.writers += 1

    def writer_ended(self, slot: Slot) -> None:
        """A writer has answered, or is fenced: it can never write again."""
        assert slot.writers > 0, f"no writer to end: {slot}"
        slot.writers -= 1
        if not slot.writers and not slot.held:
            self.quarantined_bytes -= slot.nbytes
            self._free_now(slot)

    def _free_now(self, slot: Slot) -> None:
        self.lent_bytes -= slot.nbytes
        self._free[slot.nbytes].append(slot.offset)

    def _take(self, size: int) -> int | None:
        wanted = size
        while size <= self.arena_bytes:
            places = self._free[size]
            if places:
                offset = places.pop()
                while size > wanted:  # keep the lower half, free the upper one
                    size //= 2
                    self._free[size].append(offset + size)
                return offset
            size *= 2
        return None

    def _take_lowest(self, size: int) -> int | None:
        """The same from the lowest places, wherever they are part of."""
        self._gathering -= 1
        lowest, of_bytes = self.arena_bytes, 0
        for nbytes, places in self._free.items():
            if nbytes >= size and places and (at := min(places)) < lowest:
                lowest, of_bytes = at, nbytes
        if not of_bytes:
            return None
        self._free[of_bytes].remove(lowest)
        while of_bytes > size:
            of_bytes //= 2
            self._free[of_bytes].append(lowest + of_bytes)
        return lowest

    def _join(self) -> None:
        """Joins free halves of one whole, from the smallest size up."""
        for size in _sizes(self.arena_bytes)[:-1]:
            places = set(self._free[size])
            left = []
            for offset in self._free[size]:
                buddy = offset ^ size
                if buddy in places:
                    if offset < buddy:
                        self._free[size * 2].append(offset)
                else:
                    left.append(offset)
            self._free[size] = left


def _sizes(arena_bytes: int) -> list[int]:
    return [1 << bits for bits in range(SLOT_BYTES_MIN.bit_length() - 1, arena_bytes.bit_length())]
