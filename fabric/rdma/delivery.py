"""How one peer's final frames reach it: small ones as they are, large bodies written into the slot that it gave.

Once a final frame was sent for a request nothing more is written for it. A reply that fits no slot is refused with the
room that it needs; it is kept, and asked for again. This module never asks the node. Read `fabric/rdma/serving.py`
next.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from fabric.errors import ArenaFull, Fate, NodeLost, OverspillError, ProtocolError, ReplyTooLarge, ResourceExhausted
from fabric.frame import NO_SLOT, ErrorFrame, Load, ReplyFrame, encode_error, encode_reply
from fabric.memory.lease import Lease
from fabric.rdma.heads import FRAME, HEAD_BYTES, HOLDS_INPUT, UNIT_BYTES, HeadKind, round_up
from fabric.rdma.talk import Message

if TYPE_CHECKING:
    from fabric.frame import RequestFrame
    from fabric.message import Body
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import RegionNote
    from fabric.rdma.regions import NodeRegions
    from fabric.transport import Answer

ERROR_TEXT_MAX = 2048
"""An error's text is cut so that its frame always fits one receive."""
REGIONS_MAX = 8
"""Regions for replies that a peer may have at a time: it has the old ones only until their last reply."""
NO_LOAD = Load(0, 0, 0, 0)


class Delivery:  # mutable: the peer's regions for replies come and go
    """The way back to one peer."""

    def __init__(self, connection: Connection, regions: NodeRegions, node_epoch: int) -> None:
        self._connection, self._regions, self._node_epoch = connection, regions, node_epoch
        self._notes: dict[int, RegionNote] = {}

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
        """Sends a reply. Raises ReplyTooLarge, ArenaFull, ProtocolError; a lost connection is nobody's error here."""
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
        self._write(memory, nbytes, note, request.reply_offset, Message(FRAME, frame, flags, note.number))

    def refuse(self, request: RequestFrame, error: OverspillError, body: Body) -> None:
        """Sends the error that ends a request."""
        if isinstance(error, ArenaFull) and error.fate is Fate.NEVER_RAN:
            error = ResourceExhausted(str(error), error.fate)  # the caller's own arena may have room
        final = ErrorFrame(request.client_id, request.request_no, self._node_epoch, _cut(error), NO_LOAD)
        self.tell(FRAME, encode_error(final), flags=holding(body), control=False)

    def _write(self, memory: bytes | Lease, nbytes: int, note: RegionNote, offset: int, message: Message) -> None:
        regions = self._regions
        found = regions.source(memory) if isinstance(memory, Lease) else None
        copy: Lease | None = None
        if found is None:  # a small one, which the node gave as bytes, or of a session whose arena is not reached now
            region = regions.newest
            copy = Lease.of(region.arena, nbytes)
            copy.view[:nbytes] = memory.view[:nbytes] if isinstance(memory, Lease) else memory
            source = region.source(copy)
        else:
            region, source = found
        if source is None:  # the connection is fenced
            _written(memory, copy)
            return
        address, lkey = source
        regions.began(region)  # so that its registration does not end while the NIC reads

        def done() -> None:
            _written(memory, copy)
            regions.ended(region)

        try:
            self._connection.write((address, nbytes, lkey), note, offset, offset + round_up(nbytes), message, done)
        except NodeLost:
            done()
        except BaseException:  # whatever it was, nothing may stay behind it
            done()
            raise


def holding(body: Body) -> int:
    """The flag that tells the peer to keep a request's input: an executor may still read it."""
    return HOLDS_INPUT if isinstance(body.memory, Lease) and body.memory.slot.writers else 0


def _written(_memory: bytes | Lease, copy: Lease | None) -> None:
    """The NIC has read the reply, which was held until now."""
    if copy is not None:
        copy.release()


def _cut(error: OverspillError) -> OverspillError:
    text = str(error)
    if len(text) * 4 <= ERROR_TEXT_MAX or len(text.encode(errors="replace")) <= ERROR_TEXT_MAX:
        return error
    short = text.encode(errors="replace")[:ERROR_TEXT_MAX].decode(errors="ignore")
    if isinstance(error, ReplyTooLarge):
        return ReplyTooLarge(short, error.fate, error.needed_bytes)
    return type(error)(short, error.fate)
