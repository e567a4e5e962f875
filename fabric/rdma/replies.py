"""Where one peer writes its replies: an arena for it alone, which grows when it is full and shrinks when it is idle.

The peer's NIC may write anywhere in it and nowhere else. Another size is another arena: the peer is told of it, says
that it knows it, and from then on new replies go there; the old one goes when nobody reads it and nobody can write to
it any more. This module takes no lock and never sends: `fabric/rdma/channel.py` does both. Read that next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ArenaFull, ResourceExhausted
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.rdma.domain import Use
from fabric.rdma.heads import FRAMES_BYTES, RegionNote
from fabric.rdma.registered import address_of

if TYPE_CHECKING:
    from fabric.rdma.connection import Connection
    from fabric.rdma.registered import Registered


class ReplyRegion:  # mutable: lends, then empties
    """One arena that the peer writes to. `out` counts requests whose replies may still come here."""

    __slots__ = ("_frames", "arena", "note", "out", "registered")

    def __init__(self, connection: Connection, number: int, nbytes: int) -> None:
        self.arena = Arena.create(nbytes)
        try:
            self._frames = self.arena.lease(FRAMES_BYTES)
            self.registered: Registered = connection.register(
                address_of(self.arena.map), self.arena.nbytes, Use.WRITTEN
            )
        except BaseException:  # whatever it was, nothing may stay behind it
            self.arena.close_fd()
            raise
        self.out = 0
        self.note = RegionNote(
            number, self.registered.address, self.arena.nbytes, self.registered.rkey, 0, 0, self._frames.offset
        )

    def end(self) -> None:
        """The peer reaches it no more; replies that are held stay readable."""
        self.registered.close()
        self.arena.retire()
        self.arena.close_fd()


class Replies:  # mutable: grows and shrinks
    """The regions of one connection. `offered` is one that the peer was told of and has not confirmed."""

    def __init__(self, connection: Connection, nbytes: int, nbytes_max: int) -> None:
        self._connection = connection
        self._least, self._most = nbytes, nbytes_max
        self._number = 1
        self.current = ReplyRegion(connection, 1, nbytes)
        self.offered: ReplyRegion | None = None
        self._old: list[ReplyRegion] = []

    def region(self, told: int) -> ReplyRegion | None:
        """The region of a number, which is known up to its last bits."""
        for one in (self.current, *self._old):
            if told == one.note.number & 127:
                return one
        return None

    def lease(self, nbytes: int) -> tuple[Lease, ReplyRegion]:
        """Room for one reply. Raises ArenaFull where there is none now."""
        return Lease.of(self.current.arena, nbytes), self.current

    def larger(self, needed_bytes: int) -> RegionNote | None:
        """Makes a larger region, of which the peer is to be told; None when one is on its way, or none may be had."""
        size = self.current.arena.nbytes
        wanted = min(max(4 * size, 4 << max(needed_bytes - 1, 0).bit_length()), self._most)
        return self._offer(wanted) if wanted > size else None

    def smaller(self) -> RegionNote | None:
        """Makes a region of the first size again, when nothing is held in a larger one."""
        current = self.current
        if current.arena.nbytes <= self._least or current.out or current.arena.lent_bytes() > FRAMES_BYTES:
            return None
        return self._offer(self._least)

    def confirmed(self, number: int) -> None:
        """The peer knows the region that it was offered."""
        offered = self.offered
        if offered is not None and offered.note.number == number:
            self._old.append(self.current)
            self.current, self.offered = offered, None
            self.sweep()

    def sweep(self) -> None:
        """Lets go of old regions that nobody uses."""
        for one in [one for one in self._old if not one.out and one.arena.lent_bytes() <= FRAMES_BYTES]:
            self._old.remove(one)
            one.end()

    def can_hold(self, nbytes: int) -> bool:
        """Whether a reply of this size could ever find room."""
        return nbytes <= self._most // 2

    def end(self) -> None:
        """The connection is gone."""
        for one in (self.current, *self._old, *((self.offered,) if self.offered else ())):
            one.end()

    def retire(self) -> None:
        """Lends nothing any more: the peer may still be writing."""
        for one in (self.current, *self._old):
            one.arena.retire()

    def _offer(self, nbytes: int) -> RegionNote | None:
        if self.offered is not None:
            return None
        try:
            self.offered = ReplyRegion(self._connection, self._number + 1, nbytes)
        except (ResourceExhausted, ArenaFull):
            return None
        self._number += 1
        return self.offered.note
