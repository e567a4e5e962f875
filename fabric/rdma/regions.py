"""One peer's memory at the node: arenas of local sessions, which the node's executors map, registered for its NIC.

The peer lends itself one part of an arena for inputs (the window), its frames have places of their own, and the rest
holds replies. Another size is another session with another arena. Old ones empty: their registration ends as soon as
the peer has left them and nothing runs there, the session when no kept reply can lie there any more. This module never
sends. Read `fabric/rdma/delivery.py` next.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fabric.begins import Begins
from fabric.errors import ProtocolError, Unavailable
from fabric.memory.lease import Lease
from fabric.memory.slots import SLOT_BYTES_MIN, Slot
from fabric.rdma.domain import Use
from fabric.rdma.heads import FRAMES_BYTES, RegionNote, same_region
from fabric.rdma.registered import address_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from fabric.memory.arena import Arena
    from fabric.rdma.connection import Connection
    from fabric.rdma.registered import Registered
    from fabric.transport import Channel

    OpenSession = Callable[[int], Awaitable[Channel]]
    """Opens a way to the node with an arena of so many bytes."""

LOOK_S: Final = 0.05


class NodeRegion:  # mutable: lends, then empties
    """One session's arena. `users` counts what runs in it or is sent from it, `left` says that the peer sends nothing
    there any more."""

    __slots__ = ("_registered", "arena", "begins", "channel", "left", "note", "users")

    def __init__(self, connection: Connection, number: int, channel: Channel) -> None:
        arena = channel.arena
        if arena is None:
            raise Unavailable("the node behind this port lends no memory, so nothing can be written to it; use rpc")
        self.channel = channel
        self.begins = channel if isinstance(channel, Begins) else None
        """The same, where a call to the node can be begun without a coroutine."""
        self.arena: Arena = arena
        window = arena.lease(arena.nbytes // 2)
        frames = arena.lease(FRAMES_BYTES)
        self._registered: Registered | None = connection.register(address_of(arena.map), arena.nbytes, Use.WRITTEN)
        base, rkey = self._registered.address, self._registered.rkey
        self.note = RegionNote(number, base, arena.nbytes, rkey, window.offset, window.nbytes, frames.offset)
        self.users = 0
        self.left = False

    @property
    def reply_bytes_max(self) -> int:
        """The largest reply that it can ever hold: half of it is the window, and frames lie in one half of the rest."""
        return self.arena.nbytes // 4

    def input_at(self, offset: int, nbytes: int) -> Lease:
        """The input that the peer has written there. Raises ProtocolError outside of the window."""
        note = self.note
        if offset % SLOT_BYTES_MIN or not note.window_at <= offset <= note.window_at + note.window_bytes - nbytes:
            raise ProtocolError("an input lies outside of the room that was lent for it; the connection is closed")
        return Lease(self.arena, Slot(offset, nbytes, 0), _keep)

    def source(self, lease: Lease) -> tuple[int, int] | None:
        """(address, lkey) of a reply in this arena; None where it lies elsewhere, or the NIC may not reach it now."""
        registered = self._registered
        if registered is None or lease.arena is not self.arena:
            return None
        return registered.address + lease.offset, registered.lkey

    def unregister(self) -> None:
        """The peer's NIC reaches it no more. Harmless twice."""
        registered, self._registered = self._registered, None
        if registered is not None:
            registered.close()


class NodeRegions:  # mutable: they come and go
    """The regions of one connection; the newest is what new requests go to. `emptied` is called with each that was left
    and that nobody uses any more: the NIC reaches it no more then."""

    __slots__ = ("_all", "_connection", "_emptied", "_freed", "_number", "_open", "_waiting")

    def __init__(
        self, connection: Connection, open_session: OpenSession, emptied: Callable[[NodeRegion], None]
    ) -> None:
        self._connection, self._open, self._emptied = connection, open_session, emptied
        self._all: list[NodeRegion] = []
        self._number = 0
        self._freed, self._waiting = asyncio.Event(), 0

    @property
    def newest(self) -> NodeRegion:
        """What new requests go to."""
        return self._all[-1]

    def every(self) -> tuple[NodeRegion, ...]:
        """All of them."""
        return tuple(self._all)

    def find(self, number: int) -> NodeRegion | None:
        """The region of this number, which is known up to its last bits."""
        return next((one for one in self._all if same_region(number % 128, one.note.number)), None)

    async def add(self, nbytes: int) -> NodeRegion:
        """One more, of this size. Raises what the session or the registration raises."""
        channel = await self._open(nbytes)
        try:
            self._number += 1
            region = NodeRegion(self._connection, self._number, channel)
        except BaseException:  # whatever it was, nothing may stay behind it
            channel.abort("its memory cannot be used for rdma")
            raise
        self._all.append(region)
        return region

    def began(self, region: NodeRegion) -> None:
        """Something runs in the region, or is sent from it, until `ended`."""
        region.users += 1

    def ended(self, region: NodeRegion) -> None:
        """It is over."""
        region.users -= 1
        self._look(region)

    @contextmanager
    def used(self, region: NodeRegion) -> Iterator[None]:
        """Both."""
        self.began(region)
        try:
            yield
        finally:
            self.ended(region)

    def freed(self) -> None:
        """Something that was held is held no more: whoever waits for room looks again."""
        if self._waiting:
            self._freed.set()
            self._freed.clear()

    async def room(self) -> None:
        """Until there may be more of it than now. Nobody tells of an executor that ends late, so it is never long."""
        self._waiting += 1
        try:
            await asyncio.wait_for(self._freed.wait(), LOOK_S)
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    def leave(self, number: int) -> None:
        """The peer sends nothing there any more. Raises ProtocolError for one that it does not have."""
        region = self.find(number)
        if region is None or region.note.number != number or region is self.newest:
            raise ProtocolError("a caller left a region that it does not have; the connection is closed")
        region.left = True
        self._look(region)

    def source(self, lease: Lease) -> tuple[NodeRegion, tuple[int, int]] | None:
        """The region that a reply lies in, and (address, lkey) of it there."""
        return next(((one, at) for one in self._all if (at := one.source(lease)) is not None), None)

    def unregister(self) -> None:
        """The connection is fenced."""
        for one in self._all:
            one.unregister()

    def abort(self, why: str) -> None:
        """Ends every session, and lets go of whoever heard of them: it holds us, and the memory of a closed connection
        would wait for the garbage collector."""
        for one in self._all:
            one.channel.abort(why)
        self._all.clear()
        self._emptied = _hear_nothing

    def _look(self, region: NodeRegion) -> None:
        if region.left and not region.users and region in self._all:
            self._all.remove(region)
            region.unregister()
            self._emptied(region)


def _hear_nothing(_: NodeRegion) -> None:
    """There is no region any more."""


def _keep(_: Slot) -> None:
    """The peer, who lends it to itself, takes it back."""
