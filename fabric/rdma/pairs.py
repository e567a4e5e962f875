"""The two queue pairs of one connection with all their memory: what is posted where, and how it comes to an end.

One protection domain holds a ring (receives, sends, staged frames) and the regions of the owner; closing goes from the
pairs down to the domain. To know that nothing is posted any more, receives are counted, and a marker follows what is
sent. All methods are called under the connection's lock, except `destroy` of one that was never shared. This module
counts no credit and reads no message. Read `fabric/rdma/connection.py` next.
"""

from __future__ import annotations

import mmap
import secrets
from typing import TYPE_CHECKING, Final

from fabric.rdma.config import BULK_DEPTH, CTL_DEPTH, FRAME_ROOM, PIECES_DEPTH, SEND_DEPTH
from fabric.rdma.domain import Domain, Use
from fabric.rdma.member import LINK_BITS
from fabric.rdma.outbox import COUNT_MASK
from fabric.rdma.pair import NO_IMM, Manners, OneSided, Pair, Prepared
from fabric.rdma.registered import Registered, address_of
from fabric.rdma.terms import PairNote

if TYPE_CHECKING:
    from fabric.rdma.choice import Choice
    from fabric.rdma.engine import Engine
    from fabric.rdma.member import Member
    from fabric.rdma.outbox import Piece
    from fabric.rdma.pair import Route

CTL_RECEIVED: Final = 0
BULK_RECEIVED: Final = 1
CTL_SENT: Final = 2
PIECE_SENT: Final = 3
MARKER: Final = 4
READ_DONE: Final = 5
PULSE_DONE: Final = 6
_KIND_BITS: Final = 28
_LOW_MASK: Final = (1 << LINK_BITS) - 1
assert COUNT_MASK == (1 << _KIND_BITS) - 1, "numbers fill what kinds leave"
_SIZES: Final = tuple(64 << step for step in range((FRAME_ROOM // 64).bit_length()))
"""A send is rounded up to one of these powers of two, each prepared once for each place of the ring."""
_SIGNAL_EVERY: Final = 8
_INLINE_BYTES: Final = 256
_RECEIVES_AT: Final = 0
_SENDS_AT: Final = CTL_DEPTH * FRAME_ROOM
_STAGES_AT: Final = _SENDS_AT + SEND_DEPTH * FRAME_ROOM
_TINY_AT: Final = _STAGES_AT + BULK_DEPTH * FRAME_ROOM
_SCRATCH_AT: Final = _TINY_AT + FRAME_ROOM
SCRATCH_BYTES: Final = FRAME_ROOM
_RING_BYTES: Final = _SCRATCH_AT + SCRATCH_BYTES


def kind_of(wr_id: int) -> tuple[int, int]:
    """What a work request of ours was, and its number within that kind."""
    low = wr_id & _LOW_MASK
    return low >> _KIND_BITS, low & COUNT_MASK


class Pairs:  # mutable: posted to, then destroyed
    """Pairs and ring of one connection. Raises what the engine and the device raise, and leaves nothing then."""

    def __init__(self, engine: Engine, member: Member, choice: Choice) -> None:
        config = engine.config
        self._engine = engine
        place = engine.place(member, choice)
        self._number, self.rounds = place.number, place.rounds
        self._pairs: list[Pair] = []
        self._registered: list[Registered] = []
        self._prepared: list[Prepared] = []
        self._sends: dict[int, Prepared] = {}
        self._staged: dict[int, tuple[mmap.mmap, Registered]] = {}
        self._free = list(range(BULK_DEPTH))
        self._posted = self._done = 0
        self._markers: set[int] = set()
        self._receives_out = 0
        self._destroyed = False
        self._domain: Domain | None = None
        try:
            self._domain = domain = Domain(place.device)
            self._ring = mmap.mmap(-1, _RING_BYTES)
            self._at = address_of(self._ring)
            self._view = memoryview(self._ring)
            self._memory = self._take(Registered(domain, engine.budget, self._at, _RING_BYTES, Use.RECEIVED))
            # One more send of each, for the marker, two reads and a pulse.
            self._ctl = self._own(Pair(domain, place.rounds.completions, SEND_DEPTH + 4, CTL_DEPTH, _INLINE_BYTES))
            self._bulk = self._own(Pair(domain, place.rounds.completions, PIECES_DEPTH + 1, BULK_DEPTH, _INLINE_BYTES))
            self._verbs = domain.verbs
            self._manners = [
                Manners(
                    choice.port, choice.gid_index, secrets.randbits(24), config.ack_timeout, config.retry_count,
                    config.traffic_class, config.service_level,
                )
                for _ in range(2)
            ]  # fmt: skip
        except BaseException:  # whatever it was, nothing may stay behind it
            self.destroy()
            raise

    @property
    def notes(self) -> tuple[PairNote, PairNote]:
        """Our pairs as the peer must know them."""
        ctl, bulk = self._manners
        return PairNote(self._ctl.qp_num, ctl.psn), PairNote(self._bulk.qp_num, bulk.psn)

    @property
    def nothing(self) -> tuple[int, int, int]:
        """No bytes, in memory that is registered."""
        return self._at, 0, self._memory.lkey

    def post_receives(self) -> None:
        """Ready to take all that the credits allow."""
        for pair, manners in zip((self._ctl, self._bulk), self._manners, strict=True):
            pair.to_init(manners)
        self._receives = [
            self._prepare(_RECEIVES_AT + number * FRAME_ROOM, FRAME_ROOM, CTL_RECEIVED, number)
            for number in range(CTL_DEPTH)
        ]
        self._tiny = self._prepare(_TINY_AT, 64, BULK_RECEIVED, 0)
        for each in self._receives:
            self._ctl.post_receive(each)
            self._receives_out += 1
        for _ in range(BULK_DEPTH):
            self._bulk.post_receive(self._tiny)
            self._receives_out += 1

    def connect(self, ctl: Route, bulk: Route) -> None:
        """Connects both. Raises Unavailable."""
        self._ctl.to_rts(self._manners[0], ctl)
        self._bulk.to_rts(self._manners[1], bulk)

    def take(self, number: int, nbytes: int) -> bytes:
        """What came into a receive, copied out; the receive is posted again."""
        at = _RECEIVES_AT + number * FRAME_ROOM
        message = bytes(self._view[at : at + nbytes])
        self._ctl.post_receive(self._receives[number])
        return message

    def take_bulk(self) -> None:
        """One more may come on the bulk pair."""
        self._bulk.post_receive(self._tiny)

    # Sends.

    @property
    def room(self) -> bool:
        """Whether one more send may be posted."""
        return self._posted - self._done < SEND_DEPTH

    def post(self, message: bytes) -> None:
        """Sends a message of at most `FRAME_ROOM` bytes."""
        place = self._posted % SEND_DEPTH
        at = _SENDS_AT + place * FRAME_ROOM
        self._view[at : at + len(message)] = message
        which = max(0, (len(message) - 1).bit_length() - 6)
        key = place * len(_SIZES) + which
        prepared = self._sends.get(key)
        if prepared is None:
            prepared = self._sends[key] = self._prepare(at, _SIZES[which], CTL_SENT, 0, receive=False)
        signaled = self._posted % _SIGNAL_EVERY == _SIGNAL_EVERY - 1
        wr_id = self._wr_id(CTL_SENT, self._posted & COUNT_MASK)
        self._ctl.post_send(prepared, wr_id, _SIZES[which], signaled=signaled)
        self._posted += 1

    def sent(self, number: int) -> None:
        """This send, and all before it, are done."""
        self._done += ((number - self._done) & COUNT_MASK) + 1

    def post_pieces(self, pieces: list[tuple[Piece, int]]) -> None:
        """Writes pieces of bodies, and the messages behind them, each with its sequence number. Raises Unavailable."""
        wr_id = self._wr_id(PIECE_SENT, 0)
        self._bulk.post_writes([
            OneSided(
                wr_id | no & COUNT_MASK, each.address, each.nbytes, each.lkey, each.remote, each.write.rkey,
                each.write.imm if each.last else NO_IMM, each.signaled,
            )
            for each, no in pieces
        ])  # fmt: skip

    def post_reads(self, rkey: int, parts: tuple[tuple[int, int], ...]) -> None:
        """Reads (remote address, bytes) parts of the peer's memory, in this order, one behind the other into scratch
        memory. Raises Unavailable."""
        at = 0
        for number, (remote, nbytes) in enumerate(parts):
            wr_id = self._wr_id(READ_DONE, number)
            self._ctl.post_read(OneSided(wr_id, self._at + _SCRATCH_AT + at, nbytes, self._memory.lkey, remote, rkey))
            at += nbytes

    def post_pulse(self, remote: int, rkey: int) -> None:
        """Writes nothing to the peer's memory, which its NIC acknowledges. Raises Unavailable."""
        address, _, lkey = self.nothing
        self._ctl.post_writes([OneSided(self._wr_id(PULSE_DONE, 0), address, 0, lkey, remote, rkey)])

    def scratch(self, nbytes: int) -> bytes:
        """What was read."""
        return bytes(self._view[_SCRATCH_AT : _SCRATCH_AT + nbytes])

    def stage(self, message: bytes) -> tuple[int, int, int]:
        """Puts a message where the bulk pair can write it from: (address, bytes, lkey). A long one, which is rare, gets
        memory of its own. Raises ResourceExhausted when that cannot be had."""
        nbytes = len(message)
        if nbytes <= FRAME_ROOM:
            at = _STAGES_AT + self._free.pop() * FRAME_ROOM  # as many as there are credits
            self._view[at : at + nbytes] = message
            return self._at + at, nbytes, self._memory.lkey
        memory = mmap.mmap(-1, nbytes)
        memory[:] = message
        registered = self.register(address_of(memory), nbytes, Use.SENT)
        self._staged[registered.address] = memory, registered
        return registered.address, nbytes, registered.lkey

    def unstage(self, address: int) -> None:
        """It was written."""
        at = address - self._at - _STAGES_AT
        if 0 <= at < BULK_DEPTH * FRAME_ROOM:
            self._free.append(at // FRAME_ROOM)
        elif address in self._staged:
            self._staged.pop(address)[1].close()

    def register(self, address: int, nbytes: int, use: Use) -> Registered:
        """Registers memory of the owner's."""
        assert self._domain is not None, "it has a domain until it is destroyed"
        self._registered = [one for one in self._registered if one.memory is not None]
        return self._take(Registered(self._domain, self._engine.budget, address, nbytes, use))

    # The end.

    def stop(self) -> None:
        """Nothing moves any more; a marker follows what is posted to send. Raises Unavailable."""
        for number, pair in enumerate(self._pairs):
            pair.to_error()
            prepared = self._prepare(_TINY_AT, 64, MARKER, number, receive=False)
            self._markers.add(number)
            pair.post_send(prepared, self._wr_id(MARKER, number), _RING_BYTES, signaled=True)

    def end_later(self, delay_s: float) -> None:
        """What did not come back by then is not waited for."""
        self._engine.end_later(self._number, delay_s)

    def came_back(self, marker: int) -> None:
        """Nothing that was sent on this pair is out."""
        self._markers.discard(marker)

    def receive_came_back(self) -> None:
        """One receive is not posted any more: soft-RoCE tells nothing of receives that are posted after an error, so
        they are counted, not marked."""
        self._receives_out -= 1

    @property
    def drained(self) -> bool:
        """Whether all queues are empty."""
        return not self._markers and self._receives_out <= 0

    def destroy(self) -> None:
        """Destroys all of it, from the pairs down to the domain. Harmless twice."""
        if self._destroyed:
            return
        self._destroyed = True
        for pair in self._pairs:
            pair.close()
        for one in self._registered:
            one.close()
        for prepared in self._prepared:
            prepared.close()
        self._staged.clear()
        if self._domain is not None:
            self._domain.close()
        self._engine.leave(self._number)

    def _wr_id(self, kind: int, number: int) -> int:
        return self._number << LINK_BITS | kind << _KIND_BITS | number

    def _prepare(self, at: int, nbytes: int, kind: int, number: int, *, receive: bool = True) -> Prepared:
        lkey = self._memory.lkey
        wr_id = self._wr_id(kind, number)
        prepared = Prepared(self._verbs, self._at + at, nbytes, lkey, receive=receive, wr_id=wr_id)
        self._prepared.append(prepared)
        return prepared

    def _take(self, registered: Registered) -> Registered:
        self._registered.append(registered)
        return registered

    def _own(self, pair: Pair) -> Pair:
        self._pairs.append(pair)
        return pair
