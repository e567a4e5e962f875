"""One socket for many requests at once: the half of the channel that lives on an asyncio loop.

The session's first socket is one, so that the background loop also sees the end of the session the moment it comes, and
each further loop that calls has one (`fabric/local/loops.py`, next). Final frames find their call by the request's id.
A cancelled or late call leaves its slots here in quarantine until its final frame came, and the same id waits for that
frame before it is sent again, so that an answer never meets the wrong attempt. All methods belong to the loop's thread,
except `end`. This module never opens sockets.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from contextlib import suppress
from socket import SHUT_RDWR
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, NodeLost, ProtocolError, ResourceExhausted
from fabric.frame import HEADER_BYTES, Header, Kind, bare_frame, check_header, may_be_second
from fabric.hot_loop import unwatch, watch
from fabric.local.later import Alarm, Later
from fabric.local.pongs import NO_ANSWER, Pongs, expire
from fabric.local.sockets import receive_now, send_now

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.frame import Load
    from fabric.local.exchange import Places
    from fabric.local.later import Key, Then
    from fabric.local.unclaimed import Unclaimed
    from fabric.memory.lease import Lease
    from fabric.message import RequestId

    _Final = asyncio.Future[bytes] | Later

FRAMES_WAITING_MAX = 4096
"""Frames that may wait for a node that does not read; a frame is some 200 bytes, at most 64 KiB."""
FRAMES_PER_TURN = 64  # read before others get their turn


class MuxSocket:  # mutable: owns the socket, and who waits for what
    """The socket and the calls on it. `lost` tells the channel that the session died, and why."""

    def __init__(self, sock: socket.socket, lost: Callable[[str], None], unclaimed: Unclaimed) -> None:
        self._sock = sock
        self._lost = lost
        self._unclaimed = unclaimed
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[Key, _Final] = {}
        self._pongs = Pongs()
        self._zombies: dict[Key, tuple[Places, Lease | None, asyncio.Event]] = {}
        self._out: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._alarm = Alarm(self._waiting, self._late)
        self.reason = ""

    @property
    def running(self) -> int:
        """Calls that wait for their final frame."""
        return len(self._waiting)

    @property
    def zombies(self) -> int:
        """Calls that were given up and whose final frame has not come."""
        return len(self._zombies)

    def settling(self, request: RequestId) -> bool:
        """Whether an earlier attempt of this id, given up here, awaits its final frame."""
        return (request.client_id, request.request_no) in self._zombies

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop that reads the socket, once there is one."""
        return self._loop

    def attach(self) -> None:
        """Reads on the running loop from now on. A channel belongs to one loop until that is closed."""
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        assert self._loop is None or self._loop.is_closed(), "a channel belongs to one loop"
        with self._lock:
            self._check_open()
            self._loop = loop
            watch(loop, self._sock.fileno(), self._readable)

    async def until_settled(self, request: RequestId, deadline: Deadline) -> None:
        """Waits until an earlier attempt of the same id, given up here, has its final frame."""
        if (zombie := self._zombies.get((request.client_id, request.request_no))) is None:
            return
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await zombie[2].wait()
        except TimeoutError:
            raise DeadlineExceeded(f"an earlier attempt of {request} still runs at the node; give more time") from None

    async def ask(self, request: RequestId, frame: bytes, places: Places, deadline: Deadline) -> bytes:
        """Sends a request and returns its final frame, unread. Whatever ends it early, its slots stay lent until the
        final frame came. Raises DeadlineExceeded, NodeLost, ResourceExhausted; CancelledError when it is cancelled."""
        loop = asyncio.get_running_loop()
        final: asyncio.Future[bytes] = loop.create_future()
        key = self._begin(request, frame, places, final)
        timer = loop.call_at(deadline.at_s, expire, final)
        try:
            return await final
        except BaseException as error:  # a cancelled call has to leave its slots in quarantine as well
            if self._waiting.get(key) is final:
                unsent = self._give_up(key, places, frame)
                if unsent and isinstance(error, DeadlineExceeded):
                    error.fate = Fate.NEVER_RAN
            elif not self.reason:  # the final frame came in the same turn of the loop in which the caller left
                self._settle(key, places, places.leave_reply(), places.capacity)
            raise
        finally:
            timer.cancel()
            del final  # it holds the error that is raised here, whose traceback holds this frame

    def begin(self, request: RequestId, frame: bytes, places: Places, budget_us: int, then: Then) -> None:
        """The same without waiting: `then` gets the frame or the error, in the loop's thread, an expiry a look late."""
        loop = self._loop
        assert loop is not None, "attached before the first frame"
        final = Later(loop, then, budget_us, frame, places)
        self._begin(request, frame, places, final)
        self._alarm.begun(loop)

    def _begin(self, request: RequestId, frame: bytes, places: Places, final: _Final) -> Key:
        key = (request.client_id, request.request_no)
        assert key not in self._waiting, f"request {request} is out already on this channel"
        self._check_open()
        if len(self._out) >= FRAMES_WAITING_MAX:
            raise ResourceExhausted(f"{len(self._out)} frames wait for a node that does not read; send fewer at once")
        places.lend()
        if not self._send(frame):
            places.settle()
            raise NodeLost(f"the node is gone ({self.reason}); choose another", Fate.NEVER_RAN)
        self._waiting[key] = final  # the answer cannot overtake this line: only this thread reads
        return key

    def _late(self, key: Key, final: Later) -> None:
        unsent = self._give_up(key, final.places, final.frame)
        final.set_exception(DeadlineExceeded(NO_ANSWER, Fate.NEVER_RAN if unsent else Fate.UNKNOWN))

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end of a call that runs here. Safe from any thread."""
        with self._lock:
            loop = self._loop
        if loop is not None and not self.reason:
            with suppress(RuntimeError):  # the loop was closed, and its calls with it
                loop.call_soon_threadsafe(self._cancel, (request.client_id, request.request_no))

    def _cancel(self, key: Key) -> None:
        if key in self._waiting and not self.reason:
            self._send(bare_frame(Kind.CANCEL, *key))

    async def ping(self, client_id: int, deadline: Deadline) -> Load:
        """Asks for a sign of life. Raises DeadlineExceeded, NodeLost."""
        self._check_open()
        number = self._pongs.next()
        if not self._send(bare_frame(Kind.PING, client_id, number)):
            raise NodeLost(f"the node is gone ({self.reason}); choose another", Fate.NEVER_RAN)
        return await self._pongs.wait(number, deadline)

    def _give_up(self, key: Key, places: Places, frame: bytes) -> bool:
        """Cancels at the node what was sent, and forgets what was not. Returns whether it was never sent."""
        del self._waiting[key]
        for place, waiting in enumerate(self._out):
            if waiting is frame:
                del self._out[place]
                places.settle()
                return True
        if not self.reason:  # else the session is over, and the slots stay lent for good
            self._zombies[key] = (places, places.leave_reply(), asyncio.Event())
            self._send(bare_frame(Kind.CANCEL, *key))
        return False

    def _settle(self, key: Key, places: Places, late: Lease | None, reply_bytes: int) -> None:
        """A request that was given up has its final frame."""
        places.settle()
        self._unclaimed.keep(key[1], late, reply_bytes, time.monotonic())

    # Frames.

    def _send(self, frame: bytes) -> bool:
        """Sends now or when the node reads again; False when the session is over, and the frame did not go."""
        if not self._out:
            try:
                if send_now(self._sock, frame):
                    return True
            except OSError as error:
                self._fail(f"the node closed the connection ({error.strerror})")
                return False
            assert self._loop is not None, "attached before the first frame"
            self._loop.add_writer(self._sock.fileno(), self._writable)
        self._out.append(frame)
        return True

    def _writable(self) -> None:
        try:
            while self._out and send_now(self._sock, self._out[0]):
                self._out.popleft()
        except OSError as error:
            self._fail(f"the node closed the connection ({error.strerror})")
            return
        if not self._out and self._loop is not None:
            self._loop.remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            for _ in range(FRAMES_PER_TURN):
                if self.reason:
                    return
                frame = receive_now(self._sock)
                if frame is None:
                    return
                if not frame:
                    self._fail("the node closed the connection")
                    return
                self._take(frame, check_header(frame))
                if not (self._waiting or self._zombies or self._pongs.out):  # nothing else can be there
                    return
        except ProtocolError as error:
            # Nobody knows whose answer the garbage was, so it is everybody's.
            for final in list(self._waiting.values()):
                if not final.done():
                    final.set_exception(ProtocolError(str(error)))
            self._fail(str(error))
        except OSError as error:
            self._fail(f"the connection broke ({error.strerror})")

    def _take(self, frame: bytes, header: Header) -> None:
        if header.kind is Kind.PONG:
            self._pongs.came(frame, header)
            return
        if header.kind is not Kind.REPLY and header.kind is not Kind.ERROR:
            raise ProtocolError(f"the node sent {header.kind.name}, which is not for clients; update the older side")
        key = (header.client_id, header.request_no)
        if key in self._zombies:
            places, late, settled = self._zombies.pop(key)
            self._settle(key, places, late, header.body_bytes if header.kind is Kind.REPLY else 0)
            settled.set()
            return
        final = self._waiting.pop(key, None)
        if final is None and may_be_second(frame):
            return
        if final is None:
            text = frame[HEADER_BYTES:].decode(errors="replace")[-200:] if header.kind is Kind.ERROR else ""
            raise ProtocolError(f"the node answered request {header.request_no}, which is not out {text}".rstrip())
        if not final.done() and not final.get_loop().is_closed():
            final.set_result(frame)

    # The end.

    def _check_open(self) -> None:
        if self.reason:
            raise NodeLost(f"the channel is closed ({self.reason}); choose another", Fate.NEVER_RAN)

    def _fail(self, reason: str) -> None:
        self._lost(reason)
        self.end(reason)  # for a channel that nobody holds any more, there was nobody to tell

    def end(self, reason: str) -> None:
        """Fails every call and closes the socket. Safe from any thread."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            loop = self._loop
            with suppress(OSError):
                self._sock.shutdown(SHUT_RDWR)
        if loop is None or loop.is_closed() or not loop.is_running():
            self._detach()
            return
        with suppress(RuntimeError):
            if asyncio.get_running_loop() is loop:
                self._detach()
                return
        with suppress(RuntimeError):  # the loop was closed this very moment: it reads no more, and closing is ours
            loop.call_soon_threadsafe(self._detach)
            return
        self._detach()

    def _detach(self) -> None:
        self._alarm.end()
        if (loop := self._loop) is not None and not loop.is_closed():
            unwatch(loop, self._sock.fileno())
            loop.remove_writer(self._sock.fileno())
        self._sock.close()
        self._out.clear()
        waiting: list[_Final | asyncio.Future[Load]] = [*self._waiting.values(), *self._pongs.out.values()]
        self._waiting.clear()
        for final in waiting:
            if not final.done() and not final.get_loop().is_closed():
                final.set_exception(NodeLost(f"the node is gone ({self.reason}); choose another"))
        for _, _, settled in self._zombies.values():
            settled.set()
