"""What waits to be posted on the two pairs of a connection, and what is posted when there is credit and room.

Messages that steer (credit, releases, pings) go before frames, and never behind large bodies, which have a pair of
their own. All methods are called under the connection's lock. This module never completes anything. Read
`fabric/rdma/connection.py` next.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from fabric.errors import ResourceExhausted
from fabric.rdma.heads import HEAD_BYTES, HELLO_PLACE, pack_place
from fabric.rdma.outbox import Outbox, Write

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.rdma.heads import HeadKind, RegionNote
    from fabric.rdma.pairs import Pairs
    from fabric.rdma.talk import Message, Talk

QUEUE_MAX = 4096
"""Frames that may wait for credit."""


class Posts:  # mutable: queues
    """The queues of one connection. `peer_region` is the peer's first one, once it is known."""

    def __init__(self, pairs: Pairs, talk: Talk, piece_bytes: int) -> None:
        self._pairs, self._talk = pairs, talk
        self._queue: deque[Message] = deque()
        self._control: deque[Message] = deque()
        self._outbox = Outbox(piece_bytes)
        self._bulk_no = 0
        self.peer_region: RegionNote | None = None

    def put(self, message: Message, *, control: bool) -> None:
        """Queues a message of the frame pair. Raises ResourceExhausted."""
        assert len(message.payload) + HEAD_BYTES <= self._talk.frame_room, "what is longer goes over the bulk pair"
        if len(self._queue) >= QUEUE_MAX:
            raise ResourceExhausted(f"{QUEUE_MAX} frames wait for a peer that takes none; send fewer at once")
        if control:
            self._control.append(message)
            return
        self._queue.append(message)
        self._outbox.small_frame()

    def put_write(
        self, source: tuple[int, int, int], note: RegionNote, offset: int, long_at: int, message: Message,
        done: Callable[[], None],
    ) -> Write:  # fmt: skip
        """Queues a body and the message behind it. Raises ResourceExhausted."""
        if self._outbox.full:
            raise ResourceExhausted("a thousand large bodies wait for this peer; send fewer at once")
        address, nbytes, lkey = source

        def frame() -> tuple[int, int, int, int, int]:
            talk = self._talk
            staged, room = self._pairs.stage(talk.headed(message, bulk=True)), talk.frame_room
            at = long_at if staged[1] > room else note.frames_at + self._bulk_no % talk.bulk.depth * room
            self._bulk_no += 1
            return *staged, note.base + at, pack_place(note.number, at)

        write = Write(address, nbytes, lkey, note.base + offset, note.rkey, frame, done)
        self._outbox.put(write)
        return write

    def greet(self, kind: HeadKind) -> None:
        """HELLO or ECHO on the frame pair."""
        self._control.append(self._talk.greeting(kind))
        self.pump()

    def greet_on_bulk(self) -> None:
        """The same on the bulk pair: a write of nothing."""
        note = self.peer_region
        assert note is not None, "known before anybody greets"
        address, _, lkey = self._pairs.nothing

        def hello() -> tuple[int, int, int, int, int]:
            self._bulk_no += 1
            return address, 0, lkey, note.base, HELLO_PLACE

        self._outbox.put(Write(address, 0, lkey, note.base, note.rkey, hello, _nothing))
        self.pump()

    def withdraw(self, message: Message, write: Write | None) -> bool:
        """Takes back what was not posted; says whether nothing of it was."""
        if write is not None:
            return self._outbox.withdraw(write)
        if message.posted or message not in self._queue:
            return False
        self._queue.remove(message)
        return True

    def pump(self) -> None:
        """Posts what may be posted. Raises Unavailable when the device refuses."""
        talk, pairs = self._talk, self._pairs
        while self._control and talk.ctl.may_send(control=True) and pairs.room:
            self._post(self._control.popleft())
        while self._queue and talk.ctl.may_send() and pairs.room:
            self._post(self._queue.popleft())
        if self._outbox.empty:
            return
        pieces = []
        while (taken := self._outbox.take(self._may_begin)) is not None:
            pieces.append(taken)
        if pieces:
            pairs.post_pieces(pieces)

    def pump_with_credit(self) -> None:
        """The same after messages came: their credit is given back, alone if nothing else is to be said."""
        credit = None if self._control else self._talk.credit_due()
        if credit is not None:
            self._control.append(credit)
        self.pump()

    def settled(self, number: int) -> list[Write]:
        """Pieces up to this one are done; gives the writes that are whole."""
        whole = self._outbox.settled(number, time.monotonic())
        for write in whole:
            self._pairs.unstage(write.frame_address)
        return whole

    def drop(self) -> list[Write]:
        """The connection is over: gives the writes whose memory is free by that."""
        self.drop_frames()
        return self._outbox.drop()

    def drop_frames(self) -> None:
        """No frame is sent any more."""
        self._queue.clear()
        self._control.clear()

    def _post(self, message: Message) -> None:
        self._talk.ctl.sent()
        self._pairs.post(self._talk.headed(message, bulk=False))

    def _may_begin(self) -> bool:
        if not self._talk.bulk.may_send():
            return False
        self._talk.bulk.sent()
        return True


def _nothing() -> None:
    """A greeting has no memory to give back."""
