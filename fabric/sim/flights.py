"""What is under way on one simulated connection: the half of a channel that runs in the clock's thread.

Each question has a serial number; its frame is sent again until its end arrives, as a reliable wire below us would. One
that was given up goes on as a CANCEL, because its reply slot stays quarantined until the node has answered or the
connection is fenced. This module never waits: `fabric/sim/channel.py` does. Read that next.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fabric.errors import (
    ArenaFull,
    DeadlineExceeded,
    Fate,
    NodeLost,
    OverspillError,
    ProtocolError,
    ReplyTooLarge,
    ResourceExhausted,
)
from fabric.frame import (
    NO_SLOT,
    Kind,
    RequestFrame,
    bare_frame,
    check_header,
    decode_error,
    encode_request,
)
from fabric.hello import Hello, encode_hello
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES
from fabric.sim.flight import Flight, Result, read_end
from fabric.transport import Answer, Call
from fabric.watcher import Watcher

if TYPE_CHECKING:
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.sim.network import SimNetwork
    from fabric.sim.session import SimSession

CALLS_MAX = 4096


class Flights:  # mutable: the table of one connection
    """All that is under way on the connection `name` from `host` to `node_id`. Only the clock's thread uses it;
    `closing` and `lost` may be read by any."""

    def __init__(
        self, network: SimNetwork, name: str, host: str, node_id: str, client_id: int, arena: Arena | None
    ) -> None:
        self._network, self._name, self._host, self._node_id = network, name, host, node_id
        self._client_id, self.arena = client_id, arena
        self._session: SimSession | None = None
        self._flights: dict[int, Flight] = {}
        self._serial = 0
        self.node_epoch = 0
        self.closing = False
        self.lost: str | None = None
        self.watcher = Watcher()
        self.idle = threading.Event()
        self.duplicates = 0

    def attach(self, session: SimSession) -> None:
        """The node's end of the connection."""
        self._session = session

    def lose(self, reason: str) -> None:
        """The connection ended. In the clock's thread."""
        self.closing = True
        if self.lost is not None:
            return
        self.lost = reason
        self._network.fence(self._name)
        if self._session is not None:
            self._session.close()
            self._session = None  # each end knew the other: the arena must not wait for the garbage collector
        for flight in list(self._flights.values()):
            self._end(flight, NodeLost(reason))
        if self.arena is not None:
            self.arena.close_fd()
        self.see_idle()
        self.watcher.end()

    def receive(self, frame: bytes, body: bytes, serial: int) -> None:
        """Takes one frame of the node. In the clock's thread."""
        if self.lost is not None:
            return
        flight = self._flights.get(serial)
        try:
            header = check_header(frame)
            if header.kind is Kind.ERROR and header.request_no == 0 and serial == 0:
                self.lose(f"the node closed the connection: {decode_error(frame, header).error}")
                return
            if flight is None:
                self.duplicates += 1
                return
            result = read_end(flight, frame, header, body)
        except ProtocolError as error:
            if flight is not None:
                self._end(flight, error)
            self.lose(f"the node sent what is no frame, so the channel was closed: {error}")
            return
        if isinstance(result, ReplyTooLarge) and isinstance(flight.call, Call) and not flight.abandoned:
            self._grow(flight, result.needed_bytes)
        else:
            self._end(flight, result)

    def launch(self, flight: Flight) -> None:
        """Sends a question for the first time, or refuses it."""
        clock = self._network.clock
        refusal: OverspillError | None = None
        if self.lost is not None or self.closing:
            refusal = NodeLost(self.lost or "the channel was closed before the call; use another one", Fate.NEVER_RAN)
        elif flight.deadline.expired(clock.now):
            refusal = DeadlineExceeded("the time given was over before the request was sent", Fate.NEVER_RAN)
        elif len(self._flights) >= CALLS_MAX:
            refusal = ResourceExhausted(f"{CALLS_MAX} calls are out on this channel; wait for some")
        elif isinstance(flight.call, Call) and self.arena is not None and flight.call.reply_bytes >= SMALL_BODY_BYTES:
            refusal = self._lease(flight, flight.call.reply_bytes)
        if refusal is not None:
            flight.result = refusal
            self._tell(flight)
            return
        try:
            self._take_off(flight)
        except OverspillError as error:  # names that fit no frame, mostly
            self._end(flight, error)
            return
        late = DeadlineExceeded("the time given with the request is over; give more, or send it elsewhere")
        flight.expiry = clock.call_later(flight.deadline.remaining_s(clock.now), lambda: self.give_up(flight, late))

    def give_up(self, flight: Flight, error: OverspillError) -> None:
        """The caller goes on without an answer; the flight goes on until nobody can write for it any more."""
        if flight.done.is_set():
            return
        flight.result, flight.abandoned = error, True
        if flight.reply is not None:
            flight.reply.release()  # quarantined while its writer lives
        self._tell(flight)
        if flight.serial not in self._flights:
            return
        if isinstance(flight.call, Call):
            if flight.resend is not None:
                flight.resend.cancel()
            self._transmit(flight)
        else:
            self._land(flight)

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end; the call's own outcome still comes."""
        for flight in list(self._flights.values()):
            if isinstance(flight.call, Call) and flight.call.id == request and not flight.abandoned:
                flight.cancelled = True
                if flight.resend is not None:
                    flight.resend.cancel()
                self._transmit(flight)

    def see_idle(self) -> None:
        """Tells who closes the channel once no caller waits any more."""
        if self.closing and not any(not flight.abandoned for flight in self._flights.values()):
            self.idle.set()

    def _lease(self, flight: Flight, nbytes: int) -> OverspillError | None:
        assert self.arena is not None, "only an arena has slots"
        try:
            flight.reply = Lease.of(self.arena, nbytes)
        except ResourceExhausted as error:
            return error
        self.arena.writer_began(flight.reply.slot)
        return None

    def _take_off(self, flight: Flight) -> None:
        self._serial += 1
        flight.serial = self._serial
        self._flights[flight.serial] = flight
        self._transmit(flight)

    def _grow(self, flight: Flight, needed_bytes: int) -> None:
        """The reply exists and needs more room: the same id asks again, with a larger slot."""
        self._land(flight)
        error = self._lease(flight, needed_bytes)
        if error is not None:
            self._end(flight, ArenaFull(f"the request ran, but its reply finds no room: {error}", Fate.RAN))
        else:
            self._take_off(flight)

    def _transmit(self, flight: Flight) -> None:
        session = self._session
        assert session is not None, "frames need a session"
        frame, body, label = self._frame(flight)
        serial = flight.serial
        self._network.send(
            self._host, self._node_id, frame, label, lambda arrived: session.receive(arrived, body, serial)
        )
        resend_s = self._network.options.resend_s
        flight.resend = self._network.clock.call_later(resend_s, lambda: self._transmit(flight))

    def _frame(self, flight: Flight) -> tuple[bytes, bytes, str]:
        call = flight.call
        if call is Kind.HELLO:
            return bytes(encode_hello(Hello(self._client_id))), b"", "HELLO"
        if isinstance(call, Kind):
            return bytes(bare_frame(call, self._client_id, flight.serial)), b"", f"{call.name} {flight.serial}"
        number = call.id.request_no
        if flight.abandoned or flight.cancelled:
            return bytes(bare_frame(Kind.CANCEL, call.id.client_id, number)), b"", f"CANCEL {number}"
        reply = flight.reply
        request = RequestFrame(
            client_id=call.id.client_id,
            request_no=number,
            node_epoch=self.node_epoch,
            budget_us=flight.deadline.remaining_us(self._network.clock.now),
            ack_no=call.ack_no,
            body_offset=NO_SLOT,
            body_bytes=call.body.layout.body_bytes,
            reply_offset=NO_SLOT if reply is None else reply.offset,
            reply_capacity=0 if reply is None else reply.nbytes,
            priority=call.priority,
            attempt=call.attempt,
            model=call.model,
            descriptors=call.body.layout.encoded,
        )
        return bytes(encode_request(request)), bytes(call.body.view()), f"REQUEST {number}"

    def _land(self, flight: Flight) -> None:
        """The node has answered, or is fenced: nothing is sent or written for the flight any more."""
        self._flights.pop(flight.serial, None)
        if flight.resend is not None:
            flight.resend.cancel()
        if flight.reply is not None and self.arena is not None:
            self.arena.writer_ended(flight.reply.slot)
            if not (isinstance(flight.result, Answer) and flight.result.memory is flight.reply):
                flight.reply.release()
        flight.reply = None

    def _end(self, flight: Flight, result: Result) -> None:
        if flight.abandoned:
            self._land(flight)
            return
        flight.result = result
        self._land(flight)
        self._tell(flight)

    def _tell(self, flight: Flight) -> None:
        if flight.expiry is not None:
            flight.expiry.cancel()
        flight.done.set()
        if flight.on_done is not None:
            flight.on_done()
        self.see_idle()
