"""The common header of every frame: what it is, whose it is, how long it is, and a checksum over all of it.

It stands at the front of each frame on every wire, and is checked before anything else is read. All numbers are
little-endian; the CRC-32 covers all that follows it. This module never looks behind the header. Read `fabric/frame.py`
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, final
from zlib import crc32

from fabric.errors import InvalidArgument, ProtocolError, VersionMismatch

MAGIC: Final = b"OVSP"
VERSION: Final = 1
VERSION_OLDEST: Final = 1
FRAME_BYTES_MAX: Final = 64 * 1024
"""Fits one SOCK_SEQPACKET message under the kernel's default send buffer (208 KiB) with room for several in flight."""


class Kind(IntEnum):
    """What a frame is for."""

    HELLO = 1  # facts of the caller, as JSON
    WELCOME = 2  # facts of the node, as JSON; on the local wire the arena's descriptor comes with it
    REQUEST = 3
    REPLY = 4
    ERROR = 5  # the final answer of a request that has no reply, or of a HELLO
    CANCEL = 6  # the caller gave the request up; its final frame still comes
    PING = 7
    PONG = 8
    BYE = 9
    CONTROL = 10  # between a node and its executors, as JSON
    DONE = 11  # executor to node: the final frame of a task, wrapped


HEADER_FORMAT: Final = "<4sIBBHIQQQ"
"""Magic, the checksum of all that follows it, and what `CHECKED_FORMAT` names."""
_HEADER: Final = struct.Struct(HEADER_FORMAT)
HEADER_BYTES: Final = _HEADER.size  # 40
_UNCHECKED: Final = struct.Struct("<4sI")  # the header's first part: magic, and the checksum of all that follows it
CRC_FROM: Final = _UNCHECKED.size
CHECKED_FORMAT: Final = "<BBHIQQQ"
"""The rest of it: version, kind, flags, bytes of the frame, client id, request number, bytes of the body."""
_CHECKED: Final = struct.Struct(CHECKED_FORMAT)
_KINDS: Final = {int(kind): kind for kind in Kind}


@final
@dataclass(init=False, slots=True)
class Header:  # mutable: made for each request, see fabric/frame_values.py
    """The common header: `body_bytes` is what lies outside the frame."""

    kind: Kind
    flags: int
    frame_bytes: int
    client_id: int
    request_no: int
    body_bytes: int

    def __init__(
        self,
        kind: Kind,
        flags: int,
        frame_bytes: int,
        client_id: int,
        request_no: int,
        body_bytes: int,
    ) -> None:
        self.kind = kind
        self.flags = flags
        self.frame_bytes = frame_bytes
        self.client_id = client_id
        self.request_no = request_no
        self.body_bytes = body_bytes


def check_size(size: int) -> int:
    """A frame's size, if it may travel. Raises InvalidArgument over the limit."""
    if size > FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"names, shapes and text take {size} bytes; at most {FRAME_BYTES_MAX} travel in a frame, so shorten them"
        )
    return size


def seal(checked: bytes) -> bytes:
    """Puts magic and checksum before everything else of a frame."""
    return _UNCHECKED.pack(MAGIC, crc32(checked)) + checked


def bare_frame(kind: Kind, client_id: int = 0, request_no: int = 0, payload: bytes = b"") -> bytes:
    """A frame of a kind that has no fixed part of its own: HELLO, WELCOME, CANCEL, PING, BYE, CONTROL."""
    size = check_size(HEADER_BYTES + len(payload))
    return seal(_CHECKED.pack(VERSION, kind, 0, size, client_id, request_no, 0) + payload)


def unpack_header(frame: bytes) -> tuple[int, int, int, int, int, int]:
    """Checks magic, version, length and checksum of one whole frame, and reads its common header as plain numbers:
    kind, flags, bytes of the frame, client id, request number, bytes of the body.

    Raises VersionMismatch for a version we do not speak, ProtocolError for anything else that is wrong.
    """
    if len(frame) < HEADER_BYTES:
        raise ProtocolError(
            f"a frame of {len(frame)} bytes is shorter than its header; the peer must send whole frames"
        )
    magic, crc, version, kind, flags, size, client_id, request_no, body_bytes = _HEADER.unpack_from(frame)
    if magic != MAGIC:
        raise ProtocolError(
            "the bytes are no frame of this protocol (wrong magic); check what connects to this address"
        )
    if not VERSION_OLDEST <= version <= VERSION:
        raise VersionMismatch(
            f"the peer speaks version {version} of the protocol, we speak {VERSION_OLDEST} to {VERSION}; update one"
        )
    if size != len(frame) or size > FRAME_BYTES_MAX:
        raise ProtocolError(f"a frame says {size} bytes and has {len(frame)}; the peer must send whole frames")
    if crc32(frame[CRC_FROM:]) != crc:
        raise ProtocolError("a frame's checksum is wrong: it was changed on the way, so its channel must be closed")
    if kind not in _KINDS:
        raise ProtocolError(f"a frame is of unknown kind {kind}; update the older side")
    return kind, flags, size, client_id, request_no, body_bytes


def check_header(frame: bytes) -> Header:
    """The same as a value. Raises as `unpack_header` does."""
    kind, flags, size, client_id, request_no, body_bytes = unpack_header(frame)
    return Header(_KINDS[kind], flags, size, client_id, request_no, body_bytes)
