"""One question under way on a simulated connection, and how its end is read.

Read `fabric/sim/flights.py` next, the table of all of them. This module never sends.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fabric.errors import OverspillError, ProtocolError
from fabric.frame import NO_SLOT, Kind, Load, decode_error, decode_reply
from fabric.hello import Welcome, decode_pong, decode_welcome
from fabric.layout import parse_layout
from fabric.transport import Answer, Call, WireName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.frame import Header
    from fabric.memory.lease import Lease
    from fabric.sim.clock import SimTimer

Result = Answer | Load | Welcome | OverspillError


class Flight:  # mutable: sent, answered or given up, ended
    """One question under way: a request, a ping or a hello."""

    # fmt: off
    __slots__ = (
        "abandoned", "call", "cancelled", "deadline", "done", "expiry",
        "on_done", "reply", "resend", "result", "serial",
    )
    # fmt: on

    def __init__(self, call: Call | Kind, deadline: Deadline) -> None:
        self.call, self.deadline = call, deadline
        self.done = threading.Event()
        self.on_done: Callable[[], None] | None = None
        self.result: Result | None = None
        self.reply: Lease | None = None
        self.resend: SimTimer | None = None
        self.expiry: SimTimer | None = None
        self.abandoned = self.cancelled = False
        self.serial = 0


def read_end(flight: Flight, frame: bytes, header: Header, body: bytes) -> Result:
    """What the final frame of a flight says. Raises ProtocolError when it is no end of this one."""
    if header.kind is Kind.ERROR:
        return decode_error(frame, header).error
    if flight.call is Kind.HELLO:
        return decode_welcome(frame, header)
    if flight.call is Kind.PING:
        return decode_pong(frame, header)
    call = flight.call
    assert isinstance(call, Call), "only requests have replies"
    if (header.client_id, header.request_no) != (call.id.client_id, call.id.request_no):
        raise ProtocolError(f"the node answered request {header.request_no} where {call.id} was due")
    reply = decode_reply(frame, header)
    layout = parse_layout(reply.descriptors)
    memory: bytes | Lease = body
    if reply.reply_offset != NO_SLOT:
        if flight.reply is None or flight.reply.offset != reply.reply_offset:
            raise ProtocolError("a reply lies outside of the place that was given for it")
        memory = flight.reply
    if not flight.abandoned and reply.body_bytes != layout.body_bytes:
        raise ProtocolError(f"a reply says {reply.body_bytes} bytes and describes {layout.body_bytes}")
    if reply.reply_offset == NO_SLOT and not flight.abandoned and len(body) != layout.body_bytes:
        raise ProtocolError(f"a reply describes {layout.body_bytes} bytes and has {len(body)}")
    times = (reply.generation, reply.queue_us, reply.compute_us)
    return Answer(layout, memory, *times, reply.load, WireName.SIM)
