"""How one peer's final frames reach it: small ones as they are, large bodies written into the slot that it gave.

Once a final frame was sent for a request nothing more is written for it. A reply that fits no slot is refused with the
room that it needs; it is kept, and asked for again. One that finds nothing to be sent from now is sent when it does:
it ran, so it is not refused. What the NIC reads is lent to it until it has read it, whoever else lets go of it. This
module never asks the node. Read `fabric/rdma/serving.py` next.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from fabric.errors import Fate, NodeLost, OverspillError, ProtocolError, ReplyTooLarge, ResourceExhausted
from fabric.frame import NO_SLOT, ErrorFrame, Load, ReplyFrame, encode_error, encode_reply
from fabric.memory.lease import Lease
from fabric.rdma.heads import FRAME, HEAD_BYTES, HOLDS_INPUT, UNIT_BYTES, HeadKind, round_up
from fabric.rdma.talk import Message

if TYPE_CHECKING:
    from fabric.frame import RequestFrame
    from fabric.message import Body
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import RegionNote
    from fabric.rdma.kept import Kept
    from fabric.rdma.regions import NodeRegion, NodeRegions
    from fabric.transport import Answer

ERROR_TEXT_MAX = 2048
"""An error's text is cut so that its frame always fits one receive."""
REGIONS_MAX = 8
"""Regions for replies that a peer may have at a time: it has the old ones only until their last reply."""
NO_LOAD = Load(0, 0, 0, 0)
DELAYED_MAX = 1024
"""Replies that may wait for room to be sent from; a peer has as many requests here at most."""
AGAIN_S: Final = 0.05
"""Nobody tells of an executor that ends late, so whoever waits looks again."""


class Outgoing:  # mutable: made for each large reply, see fabric/frame_values.py
    """A reply with a large body, and where it goes."""

    __slots__ = ("memory", "message", "nbytes", "note", "offset")

    def __init__(self, memory: bytes | Lease, nbytes: int, note: RegionNote, offset: int, message: Message) -> None:
        self.memory, self.nbytes = memory, nbytes
        self.note, self.offset, self.message = note, offset, message

    def hold(self) -> None:
        """Until `let_go`, its memory is lent to nobody else, whoever gives it back."""
        if isinstance(self.memory, Lease):
            self.memory.arena.writer_began(self.memory.slot)

    def let_go(self) -> None:
        """It is sent, or nobody is there any more."""
        if isinstance(self.memory, Lease):
            self.memory.arena.writer_ended(self.memory.slot)


class Delivery:  # mutable: the peer's regions for replies come and go
    """The way back to one peer. `kept` are replies whose room may be wanted for others."""

    def __init__(self, connection: Connection, regions: NodeRegions, node_epoch: int, kept: Kept) -> None:
        self._connection, self._regions, self._node_epoch, self._kept = connection, regions, node_epoch, kept
        self._notes: dict[int, RegionNote] = {}
        self._delayed: deque[Outgoing] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def know(self, note: RegionNote) -> None:
        """The peer has a region for replies."""
        self._notes[note.number] = note
        while len(self._notes) > REGIONS_MAX:
            del self._notes[next(iter(self._notes))]

    def tell(
        self, kind: HeadKind, payload: bytes = b"", *, flags: int = 0, region: int = 0, note: int = 0,
        control: bool = True,
    ) -> None:  # fmt: skip
        """Sends a message, if there is anybody to send it to."""
        with suppress(OverspillError):
            self._connection.send(kind, payload, flags=flags, region=region, note=note, control=control)

    def reply(self, request: RequestFrame, answer: Answer, reply_region: int, body: Body) -> None:
        """Sends a reply, now or when there is room to send it from. Raises ReplyTooLarge, ProtocolError, and
        ResourceExhausted where too many wait, each with the fate RAN; a lost connection is nobody's error here."""
        layout = answer.layout
        nbytes = layout.body_bytes
        frame = encode_reply(
            ReplyFrame(
                request.client_id, request.request_no, self._node_epoch, nbytes, request.reply_offset,
                answer.generation, answer.queue_us, answer.compute_us, answer.load, layout.encoded,
            )
        )  # fmt: skip
        flags, room, head_bytes = holding(body), self._connection.frame_room, HEAD_BYTES + len(frame)
        memory = answer.memory
        if head_bytes + nbytes <= room:
            small = bytes(memory.view[:nbytes]) if isinstance(memory, Lease) else memory
            self.tell(FRAME, frame + small, flags=flags, control=False)
            return
        needed = round_up(nbytes) + (head_bytes if head_bytes > room else 0)
        note = self._notes.get(reply_region)
        if request.reply_offset == NO_SLOT or note is None or request.reply_capacity < needed:
            raise ReplyTooLarge(f"the reply takes {needed} bytes; give it that much room", Fate.RAN, needed)
        if request.reply_offset % UNIT_BYTES or request.reply_offset + request.reply_capacity > note.nbytes:
            raise ProtocolError("a reply was asked to a place outside of its region; ask for it inside", Fate.RAN)
        reply = Outgoing(memory, nbytes, note, request.reply_offset, Message(FRAME, frame, flags, note.number))
        if not self._written(reply):
            self._delay(reply)

    def refuse(self, request: RequestFrame, error: OverspillError, body: Body) -> None:
        """Sends the error that ends a request."""
        final = ErrorFrame(request.client_id, request.request_no, self._node_epoch, _cut(error), NO_LOAD)
        self.tell(FRAME, encode_error(final), flags=holding(body), control=False)

    def end(self) -> None:
        """The connection is over: what waits is sent by nobody."""
        while self._delayed:
            self._delayed.popleft().let_go()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _delay(self, reply: Outgoing) -> None:
        if len(self._delayed) >= DELAYED_MAX:
            raise ResourceExhausted("too many replies wait to be sent to this caller; ask for less at once", Fate.RAN)
        reply.hold()
        self._delayed.append(reply)
        if self._timer is None:
            self._timer = self._loop.call_later(AGAIN_S, self._again)

    def _again(self) -> None:
        """Those that wait, in their order, as far as there is room."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        while self._delayed:
            if not self._written(self._delayed[0]):
                self._timer = self._loop.call_later(AGAIN_S, self._again)
                return
            self._delayed.popleft().let_go()

    def _written(self, reply: Outgoing) -> bool:
        """Whether it is on its way, or nobody waits for it any more; not where room must be waited for."""
        memory, nbytes = reply.memory, reply.nbytes
        found = self._regions.source(memory) if isinstance(memory, Lease) else None
        if found is None:  # a small one, which the node gave as bytes, or of a session whose arena is not reached now
            region = self._regions.newest
            copy = self._copy(memory, nbytes, region)
            if copy is None:
                return False
            source = region.source(copy)
        else:
            copy, (region, source) = None, found
        if source is None:  # the connection is fenced
            if copy is not None:
                copy.release()
            return True
        return self._sent(reply, region, source, memory if copy is None else copy, copy)

    def _copy(self, memory: bytes | Lease, nbytes: int, region: NodeRegion) -> Lease | None:
        """A copy that can be sent from, or None: even with those given up that are kept for a second question."""
        while True:
            try:
                copy = Lease.of(region.arena, nbytes)
            except ResourceExhausted:
                if not self._kept.give_up(time.monotonic()):
                    return None
            else:
                copy.view[:nbytes] = memory.view[:nbytes] if isinstance(memory, Lease) else memory
                return copy

    def _sent(
        self, reply: Outgoing, region: NodeRegion, source: tuple[int, int], held: bytes | Lease, copy: Lease | None
    ) -> bool:  # fmt: skip
        assert isinstance(held, Lease), "what is sent lies in registered memory"
        regions, arena, slot, (address, lkey) = self._regions, held.arena, held.slot, source
        regions.began(region)  # so that its registration does not end while the NIC reads
        arena.writer_began(slot)  # nor is the slot lent again, when others want the room of a reply that is kept

        def over() -> None:
            arena.writer_ended(slot)
            if copy is not None:
                copy.release()
            regions.ended(region)

        def done() -> None:
            over()
            regions.freed()
            if self._delayed:
                self._loop.call_soon(self._again)

        note, offset, body = reply.note, reply.offset, (address, reply.nbytes, lkey)
        try:
            self._connection.write(body, note, offset, offset + round_up(reply.nbytes), reply.message, done)
        except NodeLost:
            over()
        except ResourceExhausted:  # more writes wait than may
            over()
            return False
        except BaseException:  # whatever it was, nothing may stay behind it
            over()
            raise
        return True


def holding(body: Body) -> int:
    """The flag that tells the peer to keep a request's input: an executor may still read it."""
    return HOLDS_INPUT if isinstance(body.memory, Lease) and body.memory.slot.writers else 0


def _cut(error: OverspillError) -> OverspillError:
    text = str(error)
    if len(text) * 4 <= ERROR_TEXT_MAX or len(text.encode(errors="replace")) <= ERROR_TEXT_MAX:
        return error
    short = text.encode(errors="replace")[:ERROR_TEXT_MAX].decode(errors="ignore")
    if isinstance(error, ReplyTooLarge):
        return ReplyTooLarge(short, error.fate, error.needed_bytes)
    return type(error)(short, error.fate)
