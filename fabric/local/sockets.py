"""Seqpacket sockets: one frame per message, with descriptors beside it where the protocol says so.

The kernel keeps messages whole, so there is no buffering and no partial frame here: what does not fit is a fault of
the peer. Descriptors that nobody asked for are closed before anybody sees the frame. The node and its executors use
the same functions. This module never decodes a frame. Read `fabric/local/listener.py` next.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fabric.errors import ProtocolError
from fabric.frame import FRAME_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

PREFIX_BYTES_MAX: Final = 64
"""What the node and its executors put before a frame (64 bytes for a task, see docs/protocol.md)."""
MESSAGE_BYTES_MAX: Final = FRAME_BYTES_MAX + PREFIX_BYTES_MAX
DESCRIPTORS_MAX: Final = 4
"""More than any message of the protocol carries (one); Linux itself allows 253."""

# Plain integers, once: the flags of the socket module are enums, whose `|` costs 0.4 us each time.
_SEND: Final = int(socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
_RECEIVE: Final = int(socket.MSG_DONTWAIT)
_CLOSE_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
_CUT: Final = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_FD_BYTES: Final = array.array("i").itemsize
_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: struct ucred of unix(7)
_CONTROL_BYTES: Final = socket.CMSG_SPACE(DESCRIPTORS_MAX * _FD_BYTES)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who is at the other end of a Unix socket, as the kernel noted it at connect."""

    pid: int
    uid: int
    gid: int


def seqpacket() -> socket.socket:
    """A new Unix socket that keeps messages whole."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def seqpacket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ones, for a node and its executor."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def credentials(sock: socket.socket) -> Credentials:
    """The peer's process, user and group."""
    return Credentials(*_CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)))


def send_now(sock: socket.socket, message: bytes | bytearray, descriptors: Sequence[int] = ()) -> bool:
    """Sends one message without waiting; False when the peer's queue is full. Raises OSError when the peer is gone."""
    try:
        if descriptors:
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))
            sock.sendmsg([message], [rights], _SEND)
        else:
            sock.send(message, _SEND)
    except BlockingIOError:
        return False
    return True


def receive_now(sock: socket.socket) -> bytes | None:
    """The next message, without waiting: None when there is none yet, empty bytes at the end of the stream.

    Descriptors that come with it are closed by the kernel, since no room is given for them. Raises ProtocolError for a
    message that is too long, OSError when the peer is gone.
    """
    try:
        message = sock.recv(MESSAGE_BYTES_MAX + 1, _RECEIVE)
    except BlockingIOError:
        return None
    if len(message) > MESSAGE_BYTES_MAX:
        raise ProtocolError(f"a message is longer than {MESSAGE_BYTES_MAX} bytes; the peer must send frames only")
    return message


def receive_with_descriptors(
    sock: socket.socket, descriptors_max: int = 1, flags: int = 0
) -> tuple[bytes, tuple[int, ...]]:
    """The next message and the descriptors that came with it, which the caller now owns (close-on-exec).

    Waits as the socket does unless `flags` has MSG_DONTWAIT. Raises ProtocolError, with everything received closed, for
    a message or a set of descriptors that is larger than allowed; BlockingIOError and OSError as `recvmsg` does.
    """
    message, ancillary, seen, _ = sock.recvmsg(MESSAGE_BYTES_MAX, _CONTROL_BYTES, flags | _CLOSE_ON_EXEC)
    if not ancillary and not seen & _CUT:
        return message, ()
    received = array.array("i")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            received.frombytes(data[: len(data) - len(data) % _FD_BYTES])
    if seen & _CUT or len(received) > descriptors_max:
        close_all(received)
        raise ProtocolError(
            f"a message is over {MESSAGE_BYTES_MAX} bytes or brings more than {descriptors_max} descriptors;"
            " the peer must send what the protocol says"
        )
    return message, tuple(received)


def close_all(descriptors: Sequence[int]) -> None:
    """Closes descriptors that were received and are not wanted."""
    for descriptor in descriptors:
        os.close(descriptor)
