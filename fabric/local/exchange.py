"""What one attempt writes and reads, whatever socket it goes by: its places in the arena, its frames, its answer.

The blocking and the asynchronous half of the channel share it, so that both keep the same rules: bodies of an own
lease travel by offset, small ones and foreign ones are copied; every number of a reply is checked against the place
that was given for it. This module never touches a socket. Read `fabric/local/pool.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fabric.errors import ArenaFull, Fate, InvalidArgument, OverspillError, ProtocolError, ResourceExhausted
from fabric.frame import STREAM, TRACED, ErrorFrame, ReplyFrame, decode_final, may_be_second, pack_request
from fabric.layout import ALIGN_BYTES, Layout, parse_layout
from fabric.memory.copying import copy_bytes
from fabric.memory.lease import Lease
from fabric.memory.slots import SLOT_BYTES_MIN
from fabric.message import SMALL_BODY_BYTES
from fabric.transport import Answer, Call, WireName

if TYPE_CHECKING:
    from fabric.memory.arena import Arena
    from fabric.memory.slots import Slot
    from fabric.message import RequestId

_SMALL_SHARE: Final = 256
"""A small slot takes at most this part of its arena, so that a hundred sockets leave half of a small arena free."""
GROWTHS_MAX: Final = 4
"""How often one attempt may be told that its reply needs more room. Once is the rule; a batch may grow it again."""
_LOCAL: Final = WireName.LOCAL  # to look a member up in its enum costs 50 ns


def small_slot_bytes(arena: Arena) -> int:
    """The size of the slots that small bodies and replies are copied through."""
    return max(SLOT_BYTES_MIN, min(SMALL_BODY_BYTES, arena.nbytes // _SMALL_SHARE))


def small_reply_bytes(arena: Arena) -> int:
    """The largest reply that is small: bodies are whole multiples of the alignment, and one of SMALL_BODY_BYTES is
    answered as a lease."""
    return small_slot_bytes(arena) - ALIGN_BYTES


class Places:  # mutable: filled for one attempt, lent to the node, settled by its final frame
    """Where one attempt's input and reply lie, and which slots the node may use until its final frame.

    `input_at` and `reply_at` are offsets into the arena, `capacity` is the room for the reply, in bytes, and `out` says
    whether a final frame is owed. `leased`: one of them lies in a slot of its own, which is to be lent and let go; a
    socket's own small slots are neither.
    """

    __slots__ = (
        "_copy", "_input", "_lent", "_reply",
        "arena", "capacity", "input_at", "leased", "out", "reply_at", "reply_slot",
    )  # fmt: skip

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.input_at = self.reply_at = self.capacity = 0
        self.out = self.leased = False
        self.reply_slot: Slot | None = None
        self._reply: Lease | None = None
        self._input: Slot | None = None
        self._copy: Slot | None = None
        self._lent: tuple[Slot, ...] = ()

    def put_input(self, call: Call) -> None:
        """Gives the input a place: its own, when it lies in a lease of this arena, else a copy in a leased slot.
        Raises ResourceExhausted when there is no room for the copy."""
        memory = call.body.memory
        if isinstance(memory, Lease) and memory.arena is self.arena:
            if memory.released:
                raise InvalidArgument("the input's lease was released before the call; hold it until the answer")
            self._input = memory.slot
        else:
            nbytes = call.body.layout.body_bytes
            slot = self._input = self._copy = self.arena.lease(nbytes)
            copy_bytes(self.arena.view[slot.offset : slot.offset + nbytes], call.body.view())
        self.leased = True
        self.input_at = self._input.offset

    def put_reply(self, nbytes: int) -> None:
        """Gives the reply a leased place of at least `nbytes`. Raises ResourceExhausted when there is no room."""
        self._drop_reply()
        slot = self.reply_slot = self.arena.lease(nbytes)
        self.leased = True
        self.reply_at, self.capacity = slot.offset, slot.nbytes

    def open_reply(self) -> Lease:
        """The lease of the reply's place. It takes a microsecond to make, and is needed only once the reply is there:
        whoever waits makes it meanwhile."""
        if self._reply is None:
            assert self.reply_slot is not None, "the reply has a slot of its own"
            self._reply = Lease(self.arena, self.reply_slot)
        return self._reply

    def grow_reply(self, needed_bytes: int) -> None:
        """The same for a reply that exists already and did not fit: the error's fate is RAN. The input stays lent,
        since it is about to be sent again, and its holder may have given it back meanwhile."""
        self.out = False
        if (place := self.reply_slot) is not None:
            self._lent = tuple(slot for slot in self._lent if slot is not place)
            self.arena.writer_ended(place)
        try:
            self.put_reply(needed_bytes)
        except ResourceExhausted as full:
            told = f"the request ran, but its reply finds no room: {full}"
            raise ArenaFull(told, Fate.RAN, full.needed_bytes if isinstance(full, ArenaFull) else 0) from None

    def lend(self) -> None:
        """From now on, until `settle`, the node may use the leased slots."""
        self.out = True
        if self.reply_slot is not None:
            wanted = (self.reply_slot,) if self._input is None else (self.reply_slot, self._input)
        elif self._input is not None:
            wanted = (self._input,)
        else:
            return
        already = self._lent
        if wanted != already:
            self.arena.writer_began(*(wanted if not already else (slot for slot in wanted if slot not in already)))
            self._lent = wanted

    def settle(self) -> None:
        """The final frame came, or nothing was sent: the node does not use the slots any more."""
        self.out = False
        if self._lent:
            lent, self._lent = self._lent, ()
            self.arena.writer_ended(*lent)

    def finish(self) -> bool:
        """`settle` and `let_go` at once, where both places are copies of the asker's own: it takes no lock. False where
        they are not, and nothing was done."""
        copy, reply, lent = self._copy, self.reply_slot, self._lent
        if copy is None or reply is None or self._reply is not None or len(lent) != 2:
            return False
        self.out = self.leased = False
        self._copy = self._input = self.reply_slot = None
        self._lent = ()
        self.arena.finish(copy)
        self.arena.finish(reply)
        return True

    def give_up(self) -> None:
        """The caller leaves: what the node may still use stays lent until `settle`."""
        if not self.out:
            self.settle()
        self.let_go()

    def leave_reply(self) -> Lease | None:
        """The reply's lease, if it has one, for whoever holds it after the caller left."""
        return self.take_reply() if self.reply_slot is not None else None

    def take_reply(self) -> Lease:
        """The reply's lease, the asker's from now on."""
        lease = self.open_reply()
        self.reply_slot = self._reply = None
        return lease

    def let_go(self) -> None:
        """Nobody here wants the slots any more: they are free once they are settled too."""
        copy, self._copy, self._input = self._copy, None, None
        if copy is not None:
            self.arena.give_back(copy)
        self._drop_reply()
        self.leased = False

    def _drop_reply(self) -> None:
        slot, self.reply_slot = self.reply_slot, None
        lease, self._reply = self._reply, None
        if lease is not None:
            lease.release()
        elif slot is not None:
            self.arena.give_back(slot)


def request_frame(call: Call, node_epoch: int, budget_us: int, places: Places, flags: int = 0) -> bytes:
    """The REQUEST of one attempt. Raises InvalidArgument when names and descriptors do not fit a frame."""
    client_id, request_no = call.id
    layout = call.body.layout
    if call.stream:
        flags |= STREAM
    if call.traced:
        flags |= TRACED
    return pack_request(
        client_id,
        request_no,
        node_epoch,
        budget_us,
        call.ack_no,
        places.input_at,
        layout.body_bytes,
        places.reply_at,
        places.capacity,
        call.priority,
        call.attempt,
        call.model,
        layout.encoded,
        flags,
    )


def is_second(frame: bytes, expected: RequestId) -> bool:
    """Whether a frame is the second answer of an earlier request, which the node could not know to be answered."""
    if not may_be_second(frame):
        return False
    try:
        final = decode_final(frame)
    except ProtocolError:
        return False  # whoever reads it tells what is wrong
    return (final.client_id, final.request_no) != (expected.client_id, expected.request_no)


def read_final(frame: bytes, expected: RequestId, places: Places) -> tuple[ReplyFrame, Layout] | OverspillError:
    """The final frame of one request: its reply, or the error that the node answered with.

    Raises ProtocolError when the frame is none of this request, or its reply lies outside of the place given for it.
    """
    reply = decode_final(frame)
    if reply.request_no != expected.request_no or reply.client_id != expected.client_id:
        if isinstance(reply, ErrorFrame) and reply.request_no == 0:  # about the connection, not about a request
            raise ProtocolError(f"the node closes the connection: {reply.error}")
        raise ProtocolError(f"the node answered request {reply.request_no} where {expected} was due")
    if isinstance(reply, ErrorFrame):
        return reply.error
    layout = parse_layout(reply.descriptors)
    nbytes = reply.body_bytes
    if nbytes != layout.body_bytes:
        raise ProtocolError(f"a reply says {nbytes} bytes and describes {layout.body_bytes}; the node must say one")
    if nbytes and not places.reply_at <= reply.reply_offset <= places.reply_at + places.capacity - nbytes:
        raise ProtocolError("a reply lies outside of the place that was given for it; the node must keep to it")
    return reply, layout


def answer_of(reply: ReplyFrame, layout: Layout, memory: bytes | Lease) -> Answer:
    """The reply as the channel delivers it."""
    return Answer(layout, memory, reply.generation, reply.queue_us, reply.compute_us, reply.load, _LOCAL)


def take_leased_reply(reply: ReplyFrame, layout: Layout, places: Places) -> Answer:
    """The answer out of a leased reply slot, whose places are settled by that: copied out when small, else the lease
    itself, the answer's from now on."""
    at, nbytes = reply.reply_offset, reply.body_bytes
    memory: bytes | Lease
    if nbytes < SMALL_BODY_BYTES or at != places.reply_at:  # a lease begins where its body begins
        memory = bytes(places.arena.view[at : at + nbytes])
        if places.out and places.finish():
            return answer_of(reply, layout, memory)
    else:
        memory = places.take_reply()
    if places.out:
        places.settle()
    places.let_go()
    return answer_of(reply, layout, memory)
