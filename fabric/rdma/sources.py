"""Which parts of our memory the NIC may send from, for one peer: registered when first used, and kept.

An arena may be address space of a gigabyte, of which little is ever touched. So what is registered are extents of
4 MiB, aligned, which hold most slots whole; a larger slot is an extent of its own. The arena lends the slot that was
given back last first, so a few extents serve. Those that were not used for a while, or stand in the way of the budget,
are given up. This module takes no lock: `fabric/rdma/memory.py` is called under one. Read that next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ResourceExhausted
from fabric.rdma.domain import Use
from fabric.rdma.registered import address_of

if TYPE_CHECKING:
    from fabric.memory.arena import Arena
    from fabric.memory.slots import Slot
    from fabric.rdma.connection import Connection
    from fabric.rdma.registered import Registered

EXTENT_BYTES = 4 << 20
"""Registering that takes well under a millisecond, which is how long the interpreter's lock is held for it."""


class Extent:  # mutable: counts its users
    """A registered part of an arena, which it keeps mapped."""

    __slots__ = ("arena", "offset", "registered", "used_s", "users")

    def __init__(self, arena: Arena, offset: int, registered: Registered, now: float) -> None:
        self.arena, self.offset, self.registered = arena, offset, registered
        self.users = 0
        self.used_s = now

    def place(self, slot: Slot) -> tuple[int, int]:
        """(address, lkey) of a slot in it."""
        return self.registered.address + slot.offset - self.offset, self.registered.lkey


class Sources:  # mutable: grows and shrinks
    """The extents of one connection."""

    __slots__ = ("_connection", "_extents")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._extents: dict[tuple[int, int, int], Extent] = {}

    def use(self, arena: Arena, slot: Slot, now: float) -> Extent:
        """The extent that holds a slot, in use until `Extent.users` is counted down. Raises ResourceExhausted."""
        size = min(max(EXTENT_BYTES, slot.nbytes), arena.nbytes)
        offset = slot.offset // size * size
        key = (id(arena), offset, size)
        extent = self._extents.get(key)
        if extent is None:
            extent = self._extents[key] = Extent(arena, offset, self._register(arena, offset, size), now)
        extent.users += 1
        extent.used_s = now
        return extent

    def sweep(self, before_s: float) -> int:
        """Gives up what was not used since; returns how many there were."""
        old = [key for key, extent in self._extents.items() if not extent.users and extent.used_s < before_s]
        for key in old:
            self._extents.pop(key).registered.close()
        return len(old)

    def clear(self) -> None:
        """The connection is gone, and what it registered with it."""
        self._extents.clear()

    def _register(self, arena: Arena, offset: int, size: int) -> Registered:
        address = address_of(arena.map) + offset
        try:
            return self._connection.register(address, size, Use.SENT)
        except ResourceExhausted:
            if not self.sweep(float("inf")):
                raise
            return self._connection.register(address, size, Use.SENT)
