"""A client's way into a node: connects a socket, says HELLO, and takes the arena that comes with the WELCOME.

Every wait here ends by a deadline, and every answer is checked before it is believed. This module never sends a
request. Read `fabric/local/channel.py` next.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from fabric.errors import (
    AccessDenied,
    ConfigError,
    DeadlineExceeded,
    Fate,
    NodeLost,
    OverspillError,
    ProtocolError,
    Unavailable,
)
from fabric.frame import Kind, check_header, decode_error
from fabric.hello import Hello, Welcome, decode_welcome, encode_hello
from fabric.local.address import PATH_BYTES_MAX
from fabric.local.sockets import close_all, receive_with_descriptors, send_now, seqpacket
from fabric.memory.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline

_TIMEVAL = struct.Struct("@ll")


def open_session(path: str, hello: Hello, deadline: Deadline) -> tuple[socket.socket, Welcome, Arena]:
    """A new session: its first socket, what the node said, and the arena that it made for us.

    Raises Unavailable when nobody listens, AccessDenied, DeadlineExceeded, ProtocolError, or the node's own refusal.
    """
    sock, welcome, descriptors = _greet(path, hello, deadline)
    if len(descriptors) != 1:
        sock.close()
        raise ProtocolError("the node sent no arena with its WELCOME; update the older side")
    try:
        arena = Arena.attach(descriptors[0])
    except OverspillError:
        sock.close()
        raise
    if arena.nbytes != welcome.arena_bytes:
        sock.close()
        raise ProtocolError(f"the node's arena has {arena.nbytes} bytes, its WELCOME says {welcome.arena_bytes}")
    return sock, welcome, arena


def join_session(
    path: str, hello: Hello, deadline: Deadline, begun: Callable[[socket.socket], None] | None = None
) -> socket.socket:
    """One more socket of a session whose token is in `hello`; `begun` is told of it before the node is asked, so that
    another thread may end the wait by a shutdown. Raises as `open_session` does, and NodeLost (never ran) when the
    session is gone."""
    try:
        sock, _, descriptors = _greet(path, hello, deadline, begun)
    except (AccessDenied, Unavailable) as error:
        # The node knew this session a moment ago: another life of it answers, or none.
        raise NodeLost(f"the session is over ({error}); open the channel again", Fate.NEVER_RAN) from None
    close_all(descriptors)
    return sock


def _greet(
    path: str, hello: Hello, deadline: Deadline, begun: Callable[[socket.socket], None] | None = None
) -> tuple[socket.socket, Welcome, tuple[int, ...]]:
    sock = seqpacket()
    try:
        if begun is not None:
            begun(sock)
        _connect(sock, path, deadline)
        _limit(sock, socket.SO_RCVTIMEO, deadline)
        if not send_now(sock, encode_hello(hello)):
            raise ProtocolError(f"what listens on {path} takes no HELLO; check what it is")
        frame, descriptors = receive_with_descriptors(sock)
    except (BlockingIOError, TimeoutError):
        sock.close()
        raise _too_late(path) from None
    except OSError as error:
        sock.close()
        raise Unavailable(f"the node on {path} left before it answered ({error.strerror}); try again") from None
    except BaseException:  # whoever interrupts, the socket must not stay
        sock.close()
        raise
    try:
        return sock, _welcome(frame, path, hello), descriptors
    except OverspillError:
        close_all(descriptors)
        sock.close()
        raise


def _connect(sock: socket.socket, path: str, deadline: Deadline) -> None:
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise ConfigError(f"the socket path {path} is longer than {PATH_BYTES_MAX} bytes; choose a shorter folder")
    # A Unix socket whose backlog is full makes connect wait, and only SO_SNDTIMEO bounds that wait (unix(7)).
    _limit(sock, socket.SO_SNDTIMEO, deadline)
    try:
        sock.connect(path)
    except PermissionError:
        raise AccessDenied(f"the socket {path} is another user's; run as that user") from None
    except (BlockingIOError, TimeoutError):
        raise _too_late(path) from None
    except OSError as error:
        raise Unavailable(f"no node listens on {path} ({error.strerror}); start it or choose another") from None


def _limit(sock: socket.socket, option: int, deadline: Deadline) -> None:
    remaining_us = deadline.remaining_us(time.monotonic())
    if remaining_us <= 0:  # and zero would mean forever
        raise DeadlineExceeded("the time given with the request is over; give it more", Fate.NEVER_RAN)
    sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(*divmod(remaining_us, 1_000_000)))


def _too_late(path: str) -> DeadlineExceeded:
    return DeadlineExceeded(f"the node on {path} did not greet us in time; give more time", Fate.NEVER_RAN)


def _welcome(frame: bytes, path: str, hello: Hello) -> Welcome:
    if not frame:
        raise Unavailable(f"the node on {path} closed the connection instead of greeting; try again")
    header = check_header(frame)
    if header.kind is Kind.ERROR:
        raise decode_error(frame, header).error
    welcome = decode_welcome(frame, header)
    if not hello.version_oldest <= welcome.version <= hello.version_newest:
        raise ProtocolError(f"the node chose version {welcome.version}, which we did not offer; update the older side")
    return welcome
