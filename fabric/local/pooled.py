"""One socket for blocking calls: carries one request at a time, sent and awaited in the caller's own thread.

It keeps a small input slot and a small reply slot for itself, so a small call touches no allocator and no lock. This is
the hottest path of the client: each line here is paid by every request. It never decides what a failure means for the
session: `fabric/local/pool.py` does. Read that next.
"""

from __future__ import annotations

import os
import select
import time
from contextlib import suppress
from socket import MSG_DONTWAIT, MSG_NOSIGNAL
from typing import TYPE_CHECKING, Final

from fabric.errors import DeadlineExceeded, Fate, NodeLost, OverspillError, ProtocolError, ReplyTooLarge
from fabric.frame import FRAME_BYTES_MAX, HOLDS, NO_SLOT, Kind, bare_frame, is_held, is_release, pack_request
from fabric.local.exchange import (
    GROWTHS_MAX,
    Places,
    answer_of,
    is_second,
    read_final,
    request_frame,
    small_reply_bytes,
    small_slot_bytes,
    take_leased_reply,
)
from fabric.local.sockets import receive_now
from fabric.memory.lease import Lease

if TYPE_CHECKING:
    import socket

    from fabric.deadline import Deadline
    from fabric.frame import ReplyFrame
    from fabric.layout import Layout
    from fabric.local.unclaimed import Unclaimed
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.reply_sizes import ReplySizes
    from fabric.transport import Answer, Call

_SEND: Final = MSG_DONTWAIT | MSG_NOSIGNAL
_RECEIVE_BYTES: Final = FRAME_BYTES_MAX + 1
_GONE: Final = "the node closed the connection"
SPIN_S: Final = 150e-6
"""To be woken on another core costs 20 to 40 us on a virtual machine, and a small call takes 50 to 100 in all: where
answers come within this time it is cheaper to look for them than to sleep. The core is yielded at each look."""
LOST_FRAME_S: Final = 5.0
"""Longer than most requests that were given up still run: to ask for one that does costs its socket."""


class PooledSocket:  # mutable: carries one request after the other
    """One socket with its two small slots. `request` is the id that is out, None when there is none; `fault` says
    what broke the connection, empty while it is whole; `spent`, that it may bring frames of an earlier request; `held`,
    that the request is lost and the release of its slots is owed."""

    __slots__ = (
        "_given_up_s",
        "_input",
        "_input_at",
        "_input_view",
        "_late",
        "_poll",
        "_quick",
        "_reply",
        "_reply_at",
        "_reply_view",
        "_small_bytes",
        "_small_reply_bytes",
        "fault",
        "held",
        "places",
        "request",
        "sock",
        "spent",
    )

    def __init__(self, sock: socket.socket, arena: Arena) -> None:
        self.sock = sock
        self.places = Places(arena)
        self.request: RequestId | None = None
        self.fault = ""
        self.spent = False
        self.held = False
        self._given_up_s = 0.0
        self._quick = False
        self._late: Lease | None = None
        self._small_bytes = small_slot_bytes(arena)
        self._small_reply_bytes = small_reply_bytes(arena)
        self._input = Lease.of(arena, self._small_bytes)
        try:
            self._reply = Lease.of(arena, self._small_bytes)
        except BaseException:  # whoever keeps the error must not keep the first slot
            self._input.release()
            raise
        self._input_view = self._input.view
        self._reply_view = self._reply.view
        self._input_at, self._reply_at = self._input.offset, self._reply.offset
        # poll, not SO_RCVTIMEO, which begins anew after each signal: 0.7 us more, and a deadline that holds.
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def exchange(self, call: Call, deadline: Deadline, node_epoch: int, sizes: ReplySizes) -> Answer:
        """One attempt. Raises OverspillError; when `request` is still set afterwards, its final frame is owed."""
        places = self.places
        self._place(call, sizes)
        final = self._ask(call, deadline, node_epoch)
        if isinstance(final, OverspillError):
            try:
                reply, layout = self._grow(final, call, deadline, node_epoch, sizes)
            finally:
                del final  # an error's traceback holds this frame: it must not hold the error too
        else:
            reply, layout = final
        if places.leased:
            places.settle()
            if places.reply_slot is not None:
                return take_leased_reply(reply, layout, places)
            places.let_go()
        places.out = False
        start = reply.reply_offset - places.reply_at
        return answer_of(reply, layout, bytes(self._reply_view[start : start + layout.body_bytes]))

    def cancel(self, request: RequestId) -> None:
        """Asks for an early end. Safe from any thread: a request that ended meanwhile is none the node knows."""
        with suppress(OSError):  # a connection that broke is found so by whoever reads
            self.sock.send(bare_frame(Kind.CANCEL, request.client_id, request.request_no), _SEND)

    def give_up(self) -> None:
        """The caller left: asks for an early end of what is out. Its slots stay lent until `ended`."""
        if self.request is not None:
            self._given_up_s = time.monotonic()
            self._late = self.places.leave_reply()
            if not self.held:
                self.cancel(self.request)
        else:
            self.places.out = False
        self.places.give_up()

    def ended(self, unclaimed: Unclaimed) -> bool:
        """Whether the final frame of a request that was given up has come; its reply is `unclaimed` then. Never waits.
        Sets `fault` when the connection broke or brought something else."""
        assert self.request is not None, "a zombie waits for a final frame"
        try:
            frame = receive_now(self.sock)
            if frame is None:
                self._ask_whether_ended(self.request)
                return False
            if frame and (self.held != is_release(frame) or is_second(frame, self.request)):
                return False  # of a request that was lost its release alone is awaited, of another one no release
            if frame:
                final = read_final(frame, self.request, self.places)
                if isinstance(final, OverspillError) and is_held(frame):
                    self.held = True  # it was lost after its caller had left: its slots are still written to, perhaps
                    return False
                self.places.settle()
                # Where the first final frame was lost, nobody knows what it said.
                nbytes = final[0].body_bytes if not isinstance(final, OverspillError) else 0
                nbytes = self.places.capacity if self.spent else nbytes
                late, self._late = self._late, None
                unclaimed.keep(self.request.request_no, late, nbytes, time.monotonic())
                self.request, self.held = None, False
                return True
            self.fault = _GONE
        except (ProtocolError, OSError) as error:
            self.fault = str(error)
        return False

    def _ask_whether_ended(self, request: RequestId) -> None:
        """A signal's handler may raise just after a final frame was read and before anybody noted it: none comes then.
        The node answers an id that it knows whatever comes with it, and never begins one that has no time and no model.
        Two frames may follow, so that the socket is spent."""
        if self.held or self.spent or time.monotonic() - self._given_up_s < LOST_FRAME_S:
            return
        self.spent = True
        client_id, request_no = request
        with suppress(OSError):  # a connection that broke is found so by whoever reads
            self.sock.send(pack_request(client_id, request_no, 0, 0, 0, NO_SLOT, 0, NO_SLOT, 0, 0, 0, "", b""), _SEND)

    def _place(self, call: Call, sizes: ReplySizes) -> None:
        places = self.places
        memory = call.body.memory
        if type(memory) is bytes and len(memory) <= self._small_bytes:
            self._input_view[: len(memory)] = memory
            places.input_at = self._input_at
        else:
            places.put_input(call)
        guess = sizes.guess(call) if sizes.known else call.reply_bytes
        if guess <= self._small_reply_bytes:
            places.reply_at, places.capacity = self._reply_at, self._small_reply_bytes
        else:
            places.put_reply(guess)

    def _grow(
        self, final: OverspillError, call: Call, deadline: Deadline, node_epoch: int, sizes: ReplySizes
    ) -> tuple[ReplyFrame, Layout]:
        """Asks again, with more room each time, while a reply does not fit. Raises the error that the node gives."""
        for _ in range(GROWTHS_MAX - 1):
            if not isinstance(final, ReplyTooLarge):
                break
            self.places.grow_reply(final.needed_bytes)
            sizes.learn(call, final.needed_bytes)  # what the arena cannot hold must not keep smaller replies out
            grown = self._ask(call, deadline, node_epoch)
            if not isinstance(grown, OverspillError):
                return grown
            final = grown
        if not self.held:
            self.places.settle()
        try:
            raise final
        finally:
            del final  # else error, traceback and this frame hold each other

    def _spin(self) -> None:
        """Looks for an answer without going to sleep, for as long as one that is quick takes."""
        end_s = time.monotonic() + SPIN_S
        while not self._poll.poll(0) and time.monotonic() < end_s:
            os.sched_yield()

    def _read(self, answer: bytes, request: RequestId) -> tuple[ReplyFrame, Layout] | OverspillError | None:
        """The final frame of the request, None for one that belongs to an earlier one. Raises ProtocolError."""
        if is_release(answer):
            return None
        try:
            final = read_final(answer, request, self.places)
        except ProtocolError as error:
            if is_second(answer, request):
                return None
            self.fault = str(error)
            raise
        self.held = isinstance(final, OverspillError) and is_held(answer)
        if not self.held:  # else somebody may still write to its slots, and the release is owed
            self.request = None
        return final

    def _ask(self, call: Call, deadline: Deadline, node_epoch: int) -> tuple[ReplyFrame, Layout] | OverspillError:
        """Sends the request and reads its final frame."""
        places = self.places
        now = time.monotonic()
        budget_us = int((deadline.at_s - now) * 1e6)
        if budget_us <= 0:
            raise DeadlineExceeded("the time was over before the request was sent; give more time", Fate.NEVER_RAN)
        frame = request_frame(call, node_epoch, budget_us, places, HOLDS)
        if places.leased:
            places.lend()
        else:
            places.out = True
        self.request = call.id
        try:
            self.sock.send(frame, _SEND)
        except OSError:
            self.request = None
            self.fault = _GONE
            raise NodeLost(_GONE, Fate.NEVER_RAN) from None
        if places.reply_slot is not None:
            places.open_reply()
        if self._quick:
            self._spin()
        # A whole millisecond more, since poll counts in those and must not come back early.
        while self._poll.poll(budget_us // 1000 + 1):
            try:
                answer = self.sock.recv(_RECEIVE_BYTES, MSG_DONTWAIT)
            except BlockingIOError:  # woken for nothing
                budget_us = deadline.remaining_us(time.monotonic())
                continue
            except OSError:
                answer = b""
            if not answer:
                self.fault = _GONE
                raise NodeLost(_GONE)
            final = self._read(answer, call.id)
            if final is not None:
                self._quick = time.monotonic() - now < SPIN_S
                return final
            budget_us = deadline.remaining_us(time.monotonic())
        raise DeadlineExceeded(f"no answer came within {deadline.at_s - now:.3f} s; give more time")
