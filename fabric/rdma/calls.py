"""The calls of one connection: from the place for an input to the reply, with every slot accounted for.

A call that finds no place waits for one. A call that was given up stays here until its final frame has come, or the
connection is fenced: only then is its memory used again, and only then may the same id be sent once more. All state is
under the connection's lock; a life yields where it must wait. Read `fabric/rdma/flight.py` for what one call holds.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from fabric.errors import (
    DeadlineExceeded,
    Fate,
    InvalidArgument,
    NodeLost,
    OverspillError,
    ProtocolError,
    ReplyTooLarge,
    ResourceExhausted,
    WireTooSmall,
)
from fabric.frame import NO_SLOT, Kind, bare_frame, pack_request
from fabric.memory.lease import Lease
from fabric.message import RequestId
from fabric.rdma.flight import Flight
from fabric.rdma.heads import FRAME, HEAD_BYTES, HOLDS_INPUT, round_up
from fabric.rdma.memory import CallMemory
from fabric.rdma.talk import Message
from fabric.reply_sizes import ReplySizes

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline
    from fabric.frame import Header
    from fabric.memory.arena import Arena
    from fabric.rdma.config import RdmaConfig
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import Head
    from fabric.rdma.replies import Replies
    from fabric.rdma.window import Place, Windows
    from fabric.transport import Answer, Call

GROWTHS_MAX = 4
"""How often one attempt may be told that its reply needs more room."""
_REPLY_FRAME_BYTES = 512
"""About what a small reply's frame takes: with a larger body, it needs a slot."""


class Calls:  # mutable: what is out
    """The calls of one channel."""

    def __init__(self, connection: Connection, replies: Replies, arena: Arena | None, config: RdmaConfig) -> None:
        self.memory = CallMemory(connection, replies, arena, config)
        self._connection = connection
        self._lock = connection.lock
        self._sizes = ReplySizes()
        self._flights: dict[RequestId, Flight] = {}
        self._waiting: deque[Callable[[], None]] = deque()
        self._node_epoch = 0
        self._too_large = config.arena_bytes_max
        self._lost: OverspillError | None = None

    def begin(self, windows: Windows, node_epoch: int) -> None:
        """The node has answered."""
        self.memory.begin(windows)
        self._node_epoch = node_epoch

    def life(self, call: Call, deadline: Deadline, ring: Callable[[], None]) -> Generator[None, None, Answer]:
        """One attempt, from its places to its outcome; yields to wait. Raises OverspillError."""
        reply_bytes = self._sizes.guess(call)
        for _ in range(GROWTHS_MAX):
            flight = yield from self._begun(call, reply_bytes, deadline, ring)
            outcome = yield from self._over(flight, deadline)
            if not isinstance(outcome, OverspillError):
                if outcome.layout.body_bytes > reply_bytes:
                    self._sizes.learn(call, outcome.layout.body_bytes)
                return outcome
            if not isinstance(outcome, ReplyTooLarge):
                if isinstance(outcome, WireTooSmall):  # from now on it takes the other wire at once
                    self._sizes.learn(call, self._too_large)
                try:
                    raise outcome
                finally:
                    del outcome  # else error, traceback and this frame hold each other
            reply_bytes = outcome.needed_bytes
            self._sizes.learn(call, reply_bytes)
        raise ResourceExhausted("the reply grew each time that it was given more room; ask for less", Fate.RAN)

    def cancel(self, request: RequestId) -> None:
        """Asks for an early end of a call that is out."""
        flight = self._flights.get(request)
        if flight is not None and not flight.over:
            with suppress(OverspillError):  # a lost connection has no running calls
                self._connection.send(FRAME, bare_frame(Kind.CANCEL, *request), control=True)

    # What comes, in the loop's thread.

    def answered(self, head: Head, header: Header, payload: bytes, place: int | None) -> None:
        """The final frame of a call. Raises ProtocolError when it is out of place."""
        with self._lock:
            flight = self._flights.get(RequestId(header.client_id, header.request_no))
            if flight is None or not flight.sent:
                raise ProtocolError(f"the node answered request {header.request_no}, which is not out; it must not")
            if place is not None and (flight.region is None or head.region != flight.region.note.number):
                raise ProtocolError("a reply came to another region than it was asked to; the node must keep to it")
            del self._flights[flight.id]
            flight.payload, flight.landed = payload, place
            self._settle(flight, holds_input=head.flags & HOLDS_INPUT != 0)
        flight.ring()

    def told(self, head: Head, payload: bytes) -> None:
        """A message about memory. Raises ProtocolError."""
        with self._lock:
            self.memory.told(head, payload)
            self._wake()

    def lost(self, error: OverspillError) -> None:
        """The connection is over: every call ends with what is known of it."""
        with self._lock:
            self._end_all(error)

    def fenced(self) -> None:
        """Nobody writes any more."""
        with self._lock:
            if self._lost is None:  # who tells of the loss waited for this lock
                self._end_all(self._connection.error)
            for flight in self._flights.values():
                flight.settle()
            self._flights.clear()
            self.memory.end()

    def _end_all(self, error: OverspillError) -> None:
        self._lost = error
        self.memory.retire()
        for flight in self._flights.values():
            if not flight.over:
                flight.error = NodeLost(str(error), Fate.UNKNOWN if flight.sent else Fate.NEVER_RAN)
                flight.ring()
        self._wake()

    def tidy(self, now: float) -> None:
        """Lets go of what was not used for a while."""
        with self._lock:
            if self._lost is None:
                self.memory.tidy(now, busy=bool(self._flights))

    # One attempt.

    def _begun(
        self, call: Call, reply_bytes: int, deadline: Deadline, ring: Callable[[], None]
    ) -> Generator[None, None, Flight]:
        """Takes the places that a call needs, and sends it."""
        memory = call.body.memory
        if isinstance(memory, Lease) and memory.released:
            raise InvalidArgument("the input's lease was released before the call; hold it until the answer")
        while True:
            now = time.monotonic()
            with self._lock:
                if self._lost is not None:
                    raise NodeLost(f"the node is gone ({self._lost}); choose another", Fate.NEVER_RAN)
                # An earlier attempt of the same id, given up here, is awaited first.
                if call.id not in self._flights and not deadline.expired(now):
                    flight = self._placed(call, reply_bytes, ring, now)
                    if flight is not None:
                        self._send(flight, call, deadline.remaining_us(now), now)
                        return flight
                self._waiting.append(ring)
            if deadline.expired(now):
                raise DeadlineExceeded("the time was over before there was room for it; give more", Fate.NEVER_RAN)
            yield

    def _placed(self, call: Call, reply_bytes: int, ring: Callable[[], None], now: float) -> Flight | None:
        """The places, or None where one must be waited for. Raises WireTooSmall where none will ever do."""
        flight = Flight(call.id, ring)
        room, frame_bytes = self._connection.frame_room, HEAD_BYTES + _frame_bytes(call)
        if frame_bytes + call.body.layout.body_bytes > room:
            long = frame_bytes if frame_bytes > room else 0  # such a frame lies behind its body
            flight.place = self.memory.place(round_up(call.body.layout.body_bytes) + long, now)
            if flight.place is None:
                return None
        if reply_bytes > room - _REPLY_FRAME_BYTES:
            try:
                found = self.memory.reply(reply_bytes)
            except BaseException:  # whatever it was, nothing may stay behind it
                self.memory.put_back(flight.place)
                raise
            if found is None:
                self.memory.put_back(flight.place)
                return None
            flight.reply, flight.region = found
        return flight

    def _send(self, flight: Flight, call: Call, budget_us: int, now: float) -> None:
        layout, place = call.body.layout, flight.place
        frame = pack_request(
            call.id.client_id, call.id.request_no, self._node_epoch, budget_us,
            call.ack_no, NO_SLOT if place is None else place.offset, layout.body_bytes,
            NO_SLOT if flight.reply is None else flight.reply.offset, flight.capacity,
            call.priority, call.attempt, call.model, layout.encoded,
        )  # fmt: skip
        region = flight.region.note.number if flight.region is not None else 0
        self._flights[call.id] = flight  # before it is sent: the answer may come at once
        flight.lend()
        try:
            if place is None:
                flight.message = Message(FRAME, frame + bytes(call.body.view()), note=region)
                self._connection.post(flight.message)
            else:
                flight.message = Message(FRAME, frame, region=place.note.number, note=region)
                self._write(flight, call, place, flight.message, now)
        except BaseException:  # whatever it was, nothing may stay behind it
            self._flights.pop(call.id, None)
            flight.settle()
            self.memory.put_back(place)
            if flight.reply is not None:
                flight.reply.release()
            raise

    def _write(self, flight: Flight, call: Call, place: Place, message: Message, now: float) -> None:
        source = self.memory.source(call, now)
        body = (source.address, source.nbytes, source.lkey)
        long_at = place.offset + round_up(source.nbytes)
        try:
            flight.write = self._connection.write(body, place.note, place.offset, long_at, message, source.done)
        except BaseException:  # whatever it was, nothing may stay behind it
            source.done()
            raise

    def _over(self, flight: Flight, deadline: Deadline) -> Generator[None, None, Answer | OverspillError]:
        """Waits for the outcome. The reply's slot is the answer's from then on, or free."""
        try:
            while not flight.over:
                yield
                if not flight.over and deadline.expired(time.monotonic()):
                    fate = Fate.UNKNOWN if flight.sent else Fate.NEVER_RAN
                    raise DeadlineExceeded("no answer came in time; give more time", fate)
        except BaseException:  # too late, cancelled, interrupted: nobody here wants the slots
            self._give_up(flight)
            raise
        try:
            return flight.error if flight.error is not None else flight.outcome()
        finally:
            if flight.reply is not None:
                flight.reply.release()

    def _give_up(self, flight: Flight) -> None:
        with self._lock:
            flight.given_up = True
            if flight.over:
                if flight.reply is not None:
                    flight.reply.release()
                return
            if flight.message is not None and self._connection.withdraw(flight.message, flight.write):
                self._flights.pop(flight.id, None)
                self._settle(flight, holds_input=False)
                return
        self.cancel(flight.id)

    def _settle(self, flight: Flight, *, holds_input: bool) -> None:
        flight.settle()
        if not holds_input:
            self.memory.put_back(flight.place)
        self._wake()

    def _wake(self) -> None:
        while self._waiting:
            self._waiting.popleft()()


def _frame_bytes(call: Call) -> int:
    """The most that the frame of a call takes: its fixed parts are 104 bytes."""
    return 128 + len(call.model.encode(errors="surrogatepass")) + len(call.body.layout.encoded)
