"""The frame: what a channel carries. A common header, a part of its kind, then names, descriptors or text.

Bodies (tensors) are never inside a frame: they lie in slots, follow it on a lane, or are appended to a gRPC message by
the wire. The same frames travel on every wire and between node and executor. A frame arrives as a private copy (the
kernel or gRPC copied it), so what was checked here cannot be changed by the peer afterwards. All numbers are
little-endian; the CRC-32 covers all that follows it. This module never sends and never reads slots. Read
`fabric/transport.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from zlib import crc32

from fabric.errors import InvalidArgument, OverspillError, ProtocolError, ReplyTooLarge, VersionMismatch, from_wire

MAGIC = b"OVSP"
VERSION = 1
VERSION_OLDEST = 1
FRAME_BYTES_MAX = 64 * 1024
"""Fits one SOCK_SEQPACKET message under the kernel's default send buffer (208 KiB) with room for several in flight."""
NO_SLOT = (1 << 64) - 1


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


_HEADER = struct.Struct("<4sIBBHIQQQ")
HEADER_BYTES = _HEADER.size  # 40
_UNCHECKED = struct.Struct("<4sI")  # the header's first part: magic, and the checksum of all that follows it
_CHECKED = struct.Struct("<BBHIQQQ")
_REQUEST = struct.Struct("<QQQQQQIHBB")
_REPLY = struct.Struct("<QQQQQIIIII")
_ERROR = struct.Struct("<QQQQQHBBI")
_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Header:
    """The common header: `body_bytes` is what lies outside the frame."""

    kind: Kind
    flags: int
    frame_bytes: int
    client_id: int
    request_no: int
    body_bytes: int


@dataclass(frozen=True, slots=True)
class RequestFrame:
    """A request. `budget_us` is the time that remained when it was sent; `ack_no` says that the caller has the final
    answer of every request of its own below it; offsets are into the tenant's arena, `NO_SLOT` where there is none."""

    client_id: int
    request_no: int
    node_epoch: int
    budget_us: int
    ack_no: int
    body_offset: int
    body_bytes: int
    reply_offset: int
    reply_capacity: int
    priority: int
    attempt: int
    model: str
    descriptors: bytes


@dataclass(frozen=True, slots=True)
class Load:
    """What a node says of its load. `sequence` grows with each report of a node epoch; `accepted` counts the requests
    of this caller that the report has seen; `outstanding_us` is the work queued and running, by the node's own
    estimate, summed over `executors`."""

    sequence: int
    accepted: int
    outstanding_us: int
    executors: int


@dataclass(frozen=True, slots=True)
class ReplyFrame:
    """A reply: who made it, how long it waited and ran, and where its tensors lie."""

    client_id: int
    request_no: int
    node_epoch: int
    body_bytes: int
    reply_offset: int
    generation: int
    queue_us: int
    compute_us: int
    load: Load
    descriptors: bytes


@dataclass(frozen=True, slots=True)
class ErrorFrame:
    """The final answer of a request that has no reply."""

    client_id: int
    request_no: int
    node_epoch: int
    error: OverspillError
    load: Load


def _whole(kind: Kind, client_id: int, request_no: int, body_bytes: int, *parts: bytes) -> bytes:
    """Joins header and parts, and writes the checksum. Raises InvalidArgument over the limit of a frame."""
    payload = b"".join(parts)
    size = HEADER_BYTES + len(payload)
    if size > FRAME_BYTES_MAX:
        raise InvalidArgument(
            f"names, shapes and text take {size} bytes; at most {FRAME_BYTES_MAX} travel in a frame, so shorten them"
        )
    checked = _CHECKED.pack(VERSION, kind, 0, size, client_id, request_no, body_bytes) + payload
    return _UNCHECKED.pack(MAGIC, crc32(checked)) + checked


def bare_frame(kind: Kind, client_id: int = 0, request_no: int = 0, payload: bytes = b"") -> bytes:
    """A frame of a kind that has no fixed part of its own: HELLO, WELCOME, CANCEL, PING, BYE, CONTROL."""
    return _whole(kind, client_id, request_no, 0, payload)


def encode_request(frame: RequestFrame) -> bytes:
    """Encodes a request. Raises InvalidArgument when names and descriptors are over the frame's limit."""
    model = frame.model.encode(errors="surrogatepass")  # what is no text is no model's name: the node says so
    fixed = _REQUEST.pack(
        frame.node_epoch,
        frame.budget_us,
        frame.ack_no,
        frame.body_offset,
        frame.reply_offset,
        frame.reply_capacity,
        len(frame.descriptors),
        min(len(model), 0xFFFF),
        frame.priority,
        frame.attempt,
    )
    return _whole(Kind.REQUEST, frame.client_id, frame.request_no, frame.body_bytes, fixed, model, frame.descriptors)


def encode_reply(frame: ReplyFrame) -> bytes:
    """Encodes a reply. Raises InvalidArgument when its descriptors are over the frame's limit."""
    load = frame.load
    fixed = _REPLY.pack(
        frame.node_epoch,
        load.sequence,
        load.accepted,
        load.outstanding_us,
        frame.reply_offset,
        load.executors,
        frame.generation,
        min(frame.queue_us, 0xFFFF_FFFF),
        min(frame.compute_us, 0xFFFF_FFFF),
        len(frame.descriptors),
    )
    return _whole(Kind.REPLY, frame.client_id, frame.request_no, frame.body_bytes, fixed, frame.descriptors)


def encode_error(frame: ErrorFrame) -> bytes:
    """Encodes the final answer of a request that has no reply; a long message is cut to 4 KiB."""
    text = str(frame.error).encode(errors="replace")[:4096]
    needed = frame.error.needed_bytes if isinstance(frame.error, ReplyTooLarge) else 0
    load = frame.load
    fixed = _ERROR.pack(
        frame.node_epoch,
        load.sequence,
        load.accepted,
        load.outstanding_us,
        needed,
        frame.error.code,
        frame.error.fate,
        0,
        load.executors,
    )
    return _whole(Kind.ERROR, frame.client_id, frame.request_no, 0, fixed, text)


def check_header(frame: bytes) -> Header:
    """Checks magic, version, length and checksum of one whole frame, and reads its common header.

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
    if crc32(frame[_UNCHECKED.size :]) != crc:
        raise ProtocolError("a frame's checksum is wrong: it was changed on the way, so its channel must be closed")
    if kind not in _KINDS:
        raise ProtocolError(f"a frame is of unknown kind {kind}; update the older side")
    return Header(_KINDS[kind], flags, size, client_id, request_no, body_bytes)


def decode_request(frame: bytes, header: Header) -> RequestFrame:
    """Reads the rest of a checked REQUEST frame. Raises ProtocolError when its parts do not add up."""
    try:
        epoch, budget, ack_no, body_at, reply_at, capacity, descriptors_len, model_len, priority, attempt = (
            _REQUEST.unpack_from(frame, HEADER_BYTES)
        )
        model_at = HEADER_BYTES + _REQUEST.size
        descriptors_at = model_at + model_len
        if descriptors_at + descriptors_len != header.frame_bytes:
            raise ProtocolError("a request's parts are not as long as it says; the peer must send whole frames")
        model = frame[model_at:descriptors_at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise ProtocolError(f"a request is cut or garbled ({error}); the peer must send whole frames") from None
    ids = (header.client_id, header.request_no, epoch, budget, ack_no)
    places = (body_at, header.body_bytes, reply_at, capacity)
    return RequestFrame(*ids, *places, priority, attempt, model, frame[descriptors_at:])


def decode_reply(frame: bytes, header: Header) -> ReplyFrame:
    """Reads the rest of a checked REPLY frame. Raises ProtocolError when its parts do not add up."""
    try:
        (
            epoch,
            sequence,
            accepted,
            outstanding,
            reply_at,
            executors,
            generation,
            queue_us,
            compute_us,
            descriptors_len,
        ) = _REPLY.unpack_from(frame, HEADER_BYTES)
    except struct.error as error:
        raise ProtocolError(f"a reply is cut ({error}); the peer must send whole frames") from None
    descriptors = frame[HEADER_BYTES + _REPLY.size :]
    if len(descriptors) != descriptors_len:
        raise ProtocolError("a reply's descriptors are not as long as it says; the peer must send whole frames")
    return ReplyFrame(
        header.client_id,
        header.request_no,
        epoch,
        header.body_bytes,
        reply_at,
        generation,
        queue_us,
        compute_us,
        Load(sequence, accepted, outstanding, executors),
        descriptors,
    )


def decode_error(frame: bytes, header: Header) -> ErrorFrame:
    """Reads the rest of a checked ERROR frame. Raises ProtocolError when it is cut."""
    try:
        epoch, sequence, accepted, outstanding, needed, code, fate, _, executors = _ERROR.unpack_from(
            frame, HEADER_BYTES
        )
    except struct.error as fault:
        raise ProtocolError(f"an error frame is cut ({fault}); the peer must send whole frames") from None
    text = frame[HEADER_BYTES + _ERROR.size :].decode(errors="replace")
    error = from_wire(code, fate, text, needed)
    return ErrorFrame(
        header.client_id, header.request_no, epoch, error, Load(sequence, accepted, outstanding, executors)
    )
