"""What both ends of a connection say on its two pairs: heads with credits and sequence numbers, and the greeting.

It is the connection without the device: it makes the bytes of a message, and checks those of one that came. This module
never posts and takes no lock. Read `fabric/rdma/connection.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from fabric.errors import ProtocolError
from fabric.rdma.config import BULK_DEPTH, CTL_DEPTH, FRAME_ROOM
from fabric.rdma.credits import Credits
from fabric.rdma.heads import CREDIT, HEAD_BYTES, Head, HeadKind, pack_head, read_head

if TYPE_CHECKING:
    from collections.abc import Collection

    from fabric.errors import OverspillError
    from fabric.rdma.terms import Agreed

_U32: Final = 0xFFFF_FFFF


class Owner(Protocol):
    """Who has a connection; all but `view_of` is called in the loop's thread, `lost` and `fenced` in any."""

    @property
    def awaits(self) -> Collection[object]:
        """Something of each reply that the owner awaits."""

    def view_of(self, region: int) -> memoryview | None:
        """The region of ours that the peer writes to, by its number's last bits."""

    def lived(self) -> None:
        """Both pairs have proved themselves."""

    def arrived(self, head: Head, payload: bytes, place: int | None) -> None:
        """A message came; `place` is where its frame lay in the region, None for one that came by itself. Raises
        ProtocolError to end the connection."""

    def lost(self, error: OverspillError) -> None:
        """The connection is over. Memory that the peer writes to may still change."""

    def fenced(self) -> None:
        """Nobody writes any more."""


class Nobody:
    """Whose a connection is once it is over: owner and connection would hold each other, and with them the memory."""

    @property
    def awaits(self) -> tuple[object, ...]:
        """Nothing."""
        return ()

    def view_of(self, _region: int) -> memoryview | None:
        """None."""
        return None

    def lived(self) -> None:
        """Nobody hears it."""

    def arrived(self, _head: Head, _payload: bytes, _place: int | None) -> None:
        """Nobody hears it."""

    def lost(self, _error: OverspillError) -> None:
        """Nobody hears it."""

    def fenced(self) -> None:
        """Nobody hears it."""


class Message:  # mutable: queued, then posted
    """What waits for credit. `posted` says that the peer may have it."""

    __slots__ = ("flags", "kind", "note", "payload", "posted", "region")

    def __init__(self, kind: HeadKind, payload: bytes = b"", flags: int = 0, region: int = 0, note: int = 0) -> None:
        self.kind, self.payload, self.flags, self.region, self.note = kind, payload, flags, region, note
        self.posted = False


class Talk:  # mutable: counts what was said
    """One end's side of it. `frame_room` is what one message of the frame pair may take; with `bulk.depth` it tells
    where the frame behind a large body goes, since the peer may have fewer and smaller places than we have."""

    __slots__ = ("_arrived", "_echoes", "_nonce", "_sent", "_version", "bulk", "ctl", "epoch", "frame_room")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.frame_room = FRAME_ROOM
        self.ctl, self.bulk = Credits(CTL_DEPTH), Credits(BULK_DEPTH)
        self._nonce = self._version = 0
        self._sent, self._arrived = [0, 0], [0, 0]
        self._echoes = 0

    def agree(self, agreed: Agreed, nonce: int) -> None:
        """Both ends keep to this from now on."""
        self.ctl, self.bulk = Credits(agreed.ctl_depth), Credits(agreed.bulk_depth)
        self.frame_room = min(agreed.frame_room, FRAME_ROOM)
        self._nonce, self._version = nonce & _U32, agreed.version

    def greeting(self, kind: HeadKind) -> Message:
        """HELLO or ECHO."""
        return Message(kind, note=self._nonce)

    def credit_due(self) -> Message | None:
        """A message that gives credit alone, if the peer may be waiting for it."""
        return Message(CREDIT) if self.ctl.due or self.bulk.due else None

    def headed(self, message: Message, *, bulk: bool) -> bytes:
        """The bytes of a message that is posted now."""
        head = Head(
            message.kind, message.flags, message.region, self.epoch, self._sent[bulk] & _U32,
            self.ctl.tell(), self.bulk.tell(), message.note,
        )  # fmt: skip
        self._sent[bulk] += 1
        message.posted = True
        return pack_head(head, self._version) + message.payload

    def heard(self, raw: bytes, *, bulk: bool) -> tuple[Head, bytes]:
        """A message that came, and what follows its head. Raises ProtocolError for one that is out of turn."""
        head = read_head(raw, self.epoch, self._version)
        if head.sequence != self._arrived[bulk] & _U32:
            raise ProtocolError("a message came out of turn; the connection is closed")
        self._arrived[bulk] += 1
        self.ctl.returned(head.ctl_total)
        self.bulk.returned(head.bulk_total)
        return head, raw[HEAD_BYTES:]

    def greeted(self, head: Head) -> None:
        """A HELLO or ECHO came on the frame pair. Raises ProtocolError for another connection's."""
        if head.note != self._nonce:
            raise ProtocolError("the peer greeted with another connection's nonce; the connection is closed")
        self._echoes |= 1

    def greeted_on_bulk(self) -> None:
        """The same on the bulk pair."""
        self._echoes |= 2

    @property
    def proved(self) -> bool:
        """Whether both pairs have carried something each way."""
        return self._echoes == 3
