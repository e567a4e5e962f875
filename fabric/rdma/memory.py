"""The memory of one caller's connection: places at the node, our own that is sent from, and regions for replies.

Where there is no room, a larger region is asked for or offered, and whoever wants the room waits for it; where there
will never be room, the call goes over another wire. What was not used for a while shrinks again. All of it is called
under the lock of `fabric/rdma/calls.py`; nothing here waits. Read that next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.errors import ArenaFull, OverspillError, ProtocolError, WireTooSmall
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.rdma.heads import UNIT_BYTES, HeadKind, pack_region, pack_word, read_region
from fabric.rdma.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.memory.slots import Slot
    from fabric.rdma.config import RdmaConfig
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import Head
    from fabric.rdma.replies import Replies, ReplyRegion
    from fabric.rdma.window import Place, Windows
    from fabric.transport import Call

GROW_AGAIN_S = 5.0
"""A node that could not give a larger region is not asked again sooner."""
SOURCES_IDLE_S = 30.0
TIDY_S = 1.0


class Source:  # mutable: in use, then done
    """A body of our own on its way: `address`, `nbytes` and `lkey` for the NIC."""

    __slots__ = ("_copy", "_end", "address", "lkey", "nbytes")

    def __init__(self, address: int, nbytes: int, lkey: int, end: Callable[[], None], copy: Lease | None) -> None:
        self.address, self.nbytes, self.lkey = address, nbytes, lkey
        self._end, self._copy = end, copy

    def done(self) -> None:
        """The NIC reads it no more."""
        self._end()
        if self._copy is not None:
            self._copy.release()


class CallMemory:  # mutable: grows and shrinks
    """The memory. `arena` is where bodies that lie in no lease are copied to; one is made where none was given."""

    def __init__(self, connection: Connection, replies: Replies, arena: Arena | None, config: RdmaConfig) -> None:
        self.arena = arena
        self._own: Arena | None = None
        self._connection, self._replies, self._config = connection, replies, config
        self._sources = Sources(connection)
        self._windows: Windows | None = None
        self._growing = False
        self._refused: tuple[float, str] = (float("-inf"), "")
        self._used_s = self._tidied_s = 0.0

    def begin(self, windows: Windows) -> None:
        """The node lends room."""
        self._windows = windows

    def place(self, nbytes: int, now: float) -> Place | None:
        """Room at the node; None where it must be waited for. Raises WireTooSmall where there will be none."""
        windows = self._lent()
        self._used_s = now
        try:
            return windows.take(nbytes)
        except ArenaFull:
            most = self._config.arena_bytes_max // 2
            wanted = min(max(4 * windows.window_bytes, 2 << max(nbytes - 1, 0).bit_length()), most)
            refused_s, why = self._refused
            if not self._growing and now - refused_s >= GROW_AGAIN_S and max(windows.window_bytes, nbytes - 1) < wanted:
                self._growing = True
                self._tell(HeadKind.GROW, pack_word(wanted))
            if nbytes > windows.window_bytes and not self._growing:
                raise WireTooSmall(
                    f"{nbytes} bytes do not fit the {windows.window_bytes} that the node lends over rdma"
                    f" ({why or 'arena_bytes_max'})"
                ) from None
            return None

    def put_back(self, place: Place | None) -> None:
        """A place that nobody uses any more."""
        if place is not None:
            self._leave(self._lent().give_back(place.note.number, place.offset))

    def reply(self, nbytes: int) -> tuple[Lease, ReplyRegion] | None:
        """Room for a reply; None where it must be waited for. Raises WireTooSmall where there will be none."""
        replies = self._replies
        if not replies.can_hold(nbytes):
            raise WireTooSmall(f"a reply of {nbytes} bytes is larger than rdma carries; use rpc")
        try:
            return replies.lease(nbytes)
        except ArenaFull as full:
            larger = replies.larger(nbytes)
            if larger is not None:
                self._tell(HeadKind.REGION, pack_region(larger))
            elif replies.offered is None and not replies.current.out:
                raise WireTooSmall(f"a reply of {nbytes} bytes finds no room over rdma: {full}") from None
            return None

    def source(self, call: Call, now: float) -> Source:
        """The body of a call, where the NIC can send it from. Raises ResourceExhausted."""
        memory, copy = call.body.memory, None
        nbytes = call.body.layout.body_bytes
        if not isinstance(memory, Lease):
            memory = copy = Lease.of(self._copies(), nbytes)
            copy.view[:nbytes] = call.body.view()
        arena, slot = memory.arena, memory.slot
        try:
            extent = self._sources.use(arena, slot, now)
        except BaseException:  # whatever it was, nothing may stay behind it
            if copy is not None:
                copy.release()
            raise
        arena.writer_began(slot)

        def end(arena: Arena = arena, slot: Slot = slot) -> None:
            extent.users -= 1
            arena.writer_ended(slot)

        address, lkey = extent.place(slot)
        return Source(address, nbytes, lkey, end, copy)

    def told(self, head: Head, payload: bytes) -> None:
        """A message of the node's about memory. Raises ProtocolError."""
        windows = self._lent()
        if head.kind is HeadKind.RELEASE:
            self._leave(windows.give_back(head.region, head.note * UNIT_BYTES))
        elif head.kind is HeadKind.REGION:
            self._growing = False
            self._leave(windows.replace(read_region(payload)))
        elif head.kind is HeadKind.REFUSED:
            self._growing = False
            self._refused = (time.monotonic(), payload.rstrip(b"\0").decode(errors="replace"))
        elif head.kind is HeadKind.TAKEN:
            self._replies.confirmed(head.note)
        else:
            raise ProtocolError(f"the node sent {head.kind.name}, which is not for callers; update the older side")

    def tidy(self, now: float, *, busy: bool) -> None:
        """Lets go of what was not used for a while; cheap when it is called often."""
        if now - self._tidied_s < TIDY_S or self._windows is None:
            return
        self._tidied_s = now
        self._sources.sweep(now - SOURCES_IDLE_S)
        self._replies.sweep()
        if busy or now - self._used_s < self._config.idle_shrink_s:
            return
        smaller = self._replies.smaller()
        if smaller is not None:
            self._tell(HeadKind.REGION, pack_region(smaller))
        if not self._growing and self._windows.window_bytes > self._config.arena_bytes // 2:
            self._growing = True
            self._tell(HeadKind.GROW, pack_word(self._config.arena_bytes // 2))

    def retire(self) -> None:
        """Lends nothing any more: the node may still be writing."""
        self._replies.retire()

    def end(self) -> None:
        """Nobody writes any more."""
        self._replies.end()
        self._sources.clear()
        own, self._own = self._own, None
        if own is not None:
            own.retire()
            own.close_fd()

    def _lent(self) -> Windows:
        if self._windows is None:
            raise ProtocolError("the node speaks of memory before it was asked; the connection is closed")
        return self._windows

    def _copies(self) -> Arena:
        if self.arena is not None:
            return self.arena
        if self._own is None:
            self._own = Arena.create(self._config.arena_bytes_max)
        return self._own

    def _leave(self, region: int | None) -> None:
        if region is not None:
            self._tell(HeadKind.LEFT, note=region)

    def _tell(self, kind: HeadKind, payload: bytes = b"", note: int = 0) -> None:
        try:
            self._connection.send(kind, payload, note=note, control=True)
        except OverspillError:  # over: whoever waits is told by the connection
            return
