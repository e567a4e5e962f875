"""The part of the peer's region that this end lends itself: no round trip goes before a large body.

The node gives a region at the start, and a larger or smaller one when it is asked to; requests that are out keep their
places in the old one until they are settled, then it is left. A place is free again when the request's final frame has
come and nobody at the node reads its input any more. This module never sends and takes no lock: `channel.py` does both.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fabric.errors import ArenaFull, ProtocolError
from fabric.memory.slots import SlotTable
from fabric.rdma.heads import RegionNote  # noqa: TC001 - the compiled class looks it up when it is made

if TYPE_CHECKING:
    from fabric.memory.slots import Slot


@final
@dataclass(init=False, slots=True)
class Place:  # mutable: made for each large request, see fabric/frame_values.py
    """Room for a body in a region of the peer's: `offset` counts from the region's begin."""

    note: RegionNote
    offset: int
    nbytes: int

    def __init__(self, note: RegionNote, offset: int, nbytes: int) -> None:
        self.note = note
        self.offset = offset
        self.nbytes = nbytes


class _Window:
    __slots__ = ("held", "note", "table")

    def __init__(self, note: RegionNote) -> None:
        self.note = note
        self.table = SlotTable(note.window_bytes)
        self.held: dict[int, Slot] = {}


class Windows:  # mutable: the newest lends, older ones empty
    """The regions of one peer."""

    __slots__ = ("_by_number", "_newest")

    def __init__(self, note: RegionNote) -> None:
        if not note.window_bytes:
            raise ProtocolError("the peer lends no room for bodies; the connection is closed")
        self._newest = _Window(note)
        self._by_number = {note.number: self._newest}

    @property
    def note(self) -> RegionNote:
        """The region that new bodies go to."""
        return self._newest.note

    @property
    def window_bytes(self) -> int:
        """The most that one body may take."""
        return self._newest.note.window_bytes

    @property
    def lent_bytes(self) -> int:
        """Bytes that requests hold, in all regions."""
        return sum(window.table.lent_bytes for window in self._by_number.values())

    def take(self, nbytes: int) -> Place:
        """Room for `nbytes`. Raises ArenaFull where there is none now."""
        window = self._newest
        if nbytes > window.note.window_bytes:
            raise ArenaFull(f"{nbytes} bytes do not fit the {window.note.window_bytes} that the node lends")
        slot = window.table.lease(nbytes)
        window.held[slot.offset] = slot
        return Place(window.note, window.note.window_at + slot.offset, slot.nbytes)

    def give_back(self, number: int, offset: int) -> int | None:
        """Nobody uses the place any more; gives the number of a region that is left by that. Raises ProtocolError for a
        place that is not held."""
        window = self._by_number.get(number)
        slot = window.held.pop(offset - window.note.window_at, None) if window is not None else None
        if window is None or slot is None:
            raise ProtocolError("the peer gave back a place that is not lent; the connection is closed")
        window.table.give_back(slot)
        return self._left(window)

    def replace(self, note: RegionNote) -> int | None:
        """The peer gave another region; gives the number of the old one if nothing is out in it."""
        if not note.window_bytes or note.number in self._by_number:
            raise ProtocolError("the peer gave a region that it has given before; the connection is closed")
        old, self._newest = self._newest, _Window(note)
        self._by_number[note.number] = self._newest
        return self._left(old)

    def _left(self, window: _Window) -> int | None:
        if window is self._newest or window.held:
            return None
        del self._by_number[window.note.number]
        return window.note.number
