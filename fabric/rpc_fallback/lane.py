"""A lane: one TCP socket, plain or TLS, that carries `frame, body` each way, one call at a time.

gRPC copies a large body several times in Python; a lane reads it straight into the slot where it is wanted. One thread
at a time uses a lane, with blocking calls that a deadline bounds. Whoever closes a lane has fenced it: only its own
receiver writes the receiver's memory. Every failure is `LaneBroken`, which never leaves this wire: the call is repeated
on the stream. Read `fabric/rpc_fallback/lane_server.py` and `fabric/rpc_fallback/lane_caller.py` next.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded
from fabric.frame import HEADER_BYTES
from fabric.rpc_fallback.lane_tls import TlsSocket
from fabric.rpc_fallback.wire import frame_size

if TYPE_CHECKING:
    from fabric.deadline import Deadline

SOCKET_BUFFER_BYTES = 1 << 20
"""Of 64 KiB to 4 MiB, 256 KiB to 1 MiB were the fastest for 16 MiB over loopback: more leaves the second cache."""


class LaneBroken(Exception):
    """The socket was closed or cut, or the peer on it is no lane. `nothing_sent`: the peer cannot have the request."""

    def __init__(self, why: str, *, nothing_sent: bool = False) -> None:
        super().__init__(why)
        self.nothing_sent = nothing_sent


def tune(sock: socket.socket) -> None:
    """Sets what a lane wants of its socket. Buffers are set before connecting, so that the window can grow to them."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)


class Lane:  # mutable: owns a socket
    """One connected lane."""

    __slots__ = ("_head", "_sock")

    def __init__(self, sock: socket.socket | TlsSocket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock = sock
        self._head = bytearray(HEADER_BYTES)

    def send(self, frame: bytes, body: bytes | memoryview, deadline: Deadline) -> None:
        """Sends a frame and its body. Raises DeadlineExceeded or LaneBroken; either way close the lane."""
        try:
            self._bound(deadline)
            if isinstance(self._sock, TlsSocket):  # a record for the frame and records of 16 KiB for the body
                self._sock.sendall(frame)
                if body:
                    self._sock.sendall(body)
                return
            sent = self._sock.sendmsg((frame, body))
            if sent < len(frame):
                self._sock.sendall(memoryview(frame)[sent:])
                sent = len(frame)
            if sent - len(frame) < len(body):
                self._bound(deadline)
                self._sock.sendall(memoryview(body)[sent - len(frame) :])
        except TimeoutError:
            raise _late() from None
        except (OSError, ValueError) as error:
            raise LaneBroken(f"the lane broke while sending ({error})") from None

    def receive_frame(self, deadline: Deadline) -> bytes:
        """One frame, unchecked but for its length. Raises DeadlineExceeded, LaneBroken or ProtocolError."""
        head = self._head
        self.receive_into(memoryview(head), deadline)
        frame = bytearray(frame_size(head))
        frame[:HEADER_BYTES] = head
        if len(frame) > HEADER_BYTES:
            self.receive_into(memoryview(frame)[HEADER_BYTES:], deadline)
        return bytes(frame)

    def receive_into(self, view: memoryview, deadline: Deadline) -> None:
        """Fills `view` from the socket. Raises DeadlineExceeded or LaneBroken."""
        at, size = 0, len(view)
        try:
            self._bound(deadline)
            while at < size:
                got = self._sock.recv_into(view[at:])
                if not got:
                    raise LaneBroken("the peer closed the lane")
                at += got
                if at < size:
                    self._bound(deadline)
        except TimeoutError:
            raise _late() from None
        except (OSError, ValueError) as error:
            raise LaneBroken(f"the lane broke while receiving ({error})") from None

    def drain(self, nbytes: int, deadline: Deadline) -> None:
        """Reads `nbytes` and throws them away, so that the peer, which is sending, gets to read its answer."""
        scratch = memoryview(bytearray(min(nbytes, SOCKET_BUFFER_BYTES)))
        while nbytes:
            piece = min(nbytes, len(scratch))
            self.receive_into(scratch[:piece], deadline)
            nbytes -= piece

    def stale(self) -> bool:
        """Whether the peer closed the lane, or spoke out of turn, while nobody used it."""
        try:
            return bool(select.select((self._sock,), (), (), 0)[0])
        except (OSError, ValueError):
            return True

    def wake(self) -> None:
        """Ends whatever the lane's thread waits for, from any thread; the lane is broken then."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was not connected any more

    def close(self) -> None:
        """Closes the socket: the fence. Called by the thread that uses the lane, or when none does."""
        self._sock.close()

    def _bound(self, deadline: Deadline) -> None:
        remaining_s = deadline.remaining_s(time.monotonic())
        if not remaining_s:
            raise _late()
        self._sock.settimeout(remaining_s)


def _late() -> DeadlineExceeded:
    return DeadlineExceeded("the time given with the request is over; give it more, or ask a node that is less busy")
