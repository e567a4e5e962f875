"""The frame: what a channel carries. A common header, a part of its kind, then names, descriptors or text.

Bodies (tensors) are never inside a frame: they lie in slots, follow it on a lane, or are appended to a gRPC message by
the wire. The same frames travel on every wire and between node and executor. A frame arrives as a private copy (the
kernel or gRPC copied it), so what was checked here cannot be changed by the peer afterwards. All numbers are
little-endian; the header is in `fabric/header.py`, what the frames say in `fabric/frame_values.py`. This module never
sends and never reads slots. Read `fabric/transport.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final
from zlib import crc32

from fabric.errors import Fate, ProtocolError, ReplyTooLarge, from_wire
from fabric.frame_values import ErrorFrame, Load, ReplyFrame, RequestFrame
from fabric.header import (
    CHECKED_FORMAT,
    CRC_FROM,
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    HEADER_FORMAT,
    MAGIC,
    VERSION,
    VERSION_OLDEST,
    Header,
    Kind,
    bare_frame,
    check_header,
    check_size,
    seal,
    unpack_header,
)

# Whoever works with frames finds all of it here.
__all__ = [
    "FRAME_BYTES_MAX", "HEADER_BYTES", "MAGIC", "NO_SLOT", "VERSION", "VERSION_OLDEST", "ErrorFrame", "Header", "Kind",
    "Load", "ReplyFrame", "RequestFrame", "bare_frame", "check_header", "decode_error", "decode_final", "decode_reply",
    "decode_request", "encode_error", "encode_reply", "encode_request", "pack_request", "read_request",
]  # fmt: skip

NO_SLOT: Final = (1 << 64) - 1
MAYBE_SECOND: Final = 1
"""Flag of an ERROR: an executor died as it answered, so its caller may have an answer, and then drops this one."""
STREAM: Final = 1
"""Flag of a REQUEST: its caller asks the same id again for each further answer, see `workers/streams.py`."""
HOLDS: Final = 2
"""Flag of a REQUEST: its caller understands `HELD`."""
TRACED: Final = 4
"""Flag of a REQUEST: its node remembers for a while what it took, see `workers/traced.py`."""
HELD: Final = 2
"""Flag of an ERROR: the request is lost, and its slots may still be written to: they stay out of use until the same
ERROR has come with `RELEASED`."""
RELEASED: Final = 4
"""Flag of an ERROR: nobody writes any more to the slots of a request whose caller was told that it is lost."""
_KIND_AT: Final = 9
_FLAGS_AT: Final = 10

_REQUEST_FORMAT: Final = "QQQQQQIHBB"
_REPLY_FORMAT: Final = "QQQQQIIIII"
_ERROR_FORMAT: Final = "QQQQQHBBI"
_REQUEST: Final = struct.Struct("<" + _REQUEST_FORMAT)
_REPLY: Final = struct.Struct("<" + _REPLY_FORMAT)
_ERROR: Final = struct.Struct("<" + _ERROR_FORMAT)
# Header and fixed part in one: packing them together costs a third less.
_WHOLE_REQUEST: Final = struct.Struct(CHECKED_FORMAT + _REQUEST_FORMAT)
_WHOLE_REPLY: Final = struct.Struct(CHECKED_FORMAT + _REPLY_FORMAT)
_WHOLE_ERROR: Final = struct.Struct(CHECKED_FORMAT + _ERROR_FORMAT)
_SEALED_REQUEST: Final = struct.Struct(HEADER_FORMAT + _REQUEST_FORMAT)
_SEALED_REPLY: Final = struct.Struct(HEADER_FORMAT + _REPLY_FORMAT)
_SEALED_REPLY_BYTES: Final = _SEALED_REPLY.size
_REQUEST_KIND: Final = int(Kind.REQUEST)
_REPLY_KIND: Final = int(Kind.REPLY)
_ERROR_KIND: Final = int(Kind.ERROR)


def pack_request(  # noqa: PLR0917 - one argument per field of the frame, in its order
    client_id: int,
    request_no: int,
    node_epoch: int,
    budget_us: int,
    ack_no: int,
    body_offset: int,
    body_bytes: int,
    reply_offset: int,
    reply_capacity: int,
    priority: int,
    attempt: int,
    model: str,
    descriptors: bytes,
    flags: int = 0,
) -> bytes:
    """Encodes a request from the fields of a `RequestFrame`, in its order: the hot path of a client needs no value."""
    tail, size, descriptors_bytes, name_bytes = _request_tail(model, descriptors)
    fixed = _WHOLE_REQUEST.pack(
        VERSION, _REQUEST_KIND, flags, size, client_id, request_no, body_bytes,
        node_epoch, budget_us, ack_no, body_offset, reply_offset, reply_capacity,
        descriptors_bytes, name_bytes, priority, attempt,
    )  # fmt: skip
    return seal(fixed + tail)


@lru_cache(maxsize=256)  # a client asks few models in few shapes
def _request_tail(model: str, descriptors: bytes) -> tuple[bytes, int, int, int]:
    """What follows the fixed part of a request; the bytes of the whole frame, of the descriptors, and of the name."""
    name = model.encode(errors="surrogatepass")  # what is no text is no model's name: the node says so
    size = check_size(HEADER_BYTES + _REQUEST.size + len(name) + len(descriptors))
    return name + descriptors, size, len(descriptors), len(name)


def encode_request(frame: RequestFrame) -> bytes:
    """Encodes a request. Raises InvalidArgument when names and descriptors are over the frame's limit."""
    return pack_request(
        frame.client_id,
        frame.request_no,
        frame.node_epoch,
        frame.budget_us,
        frame.ack_no,
        frame.body_offset,
        frame.body_bytes,
        frame.reply_offset,
        frame.reply_capacity,
        frame.priority,
        frame.attempt,
        frame.model,
        frame.descriptors,
    )


def encode_reply(frame: ReplyFrame) -> bytes:
    """Encodes a reply. Raises InvalidArgument when its descriptors are over the frame's limit."""
    load, descriptors = frame.load, frame.descriptors
    size = check_size(HEADER_BYTES + _REPLY.size + len(descriptors))
    header = (VERSION, _REPLY_KIND, 0, size, frame.client_id, frame.request_no, frame.body_bytes)
    loads = (load.sequence, load.accepted, load.outstanding_us)
    times = (min(frame.queue_us, 0xFFFF_FFFF), min(frame.compute_us, 0xFFFF_FFFF))
    places = (frame.reply_offset, load.executors, frame.generation)
    return seal(_WHOLE_REPLY.pack(*header, frame.node_epoch, *loads, *places, *times, len(descriptors)) + descriptors)


def encode_error(frame: ErrorFrame, flags: int = 0) -> bytes:
    """Encodes the final answer of a request that has no reply; a long message is cut to 4 KiB."""
    error, load = frame.error, frame.load
    text = str(error).encode(errors="replace")[:4096]
    needed = error.needed_bytes if isinstance(error, ReplyTooLarge) else 0
    size = check_size(HEADER_BYTES + _ERROR.size + len(text))
    header = (VERSION, _ERROR_KIND, flags, size, frame.client_id, frame.request_no, 0)
    loads = (load.sequence, load.accepted, load.outstanding_us)
    known = (needed, error.code, error.fate, 0, load.executors)
    return seal(_WHOLE_ERROR.pack(*header, frame.node_epoch, *loads, *known) + text)


def is_reply(frame: bytes) -> bool:
    """Whether a final frame of our own making is a reply, and no error."""
    return frame[_KIND_AT] == _REPLY_KIND


def may_be_second(frame: bytes) -> bool:
    """Whether a final frame says that its request may have had one already; the frame is not checked yet."""
    return len(frame) >= HEADER_BYTES and frame[_FLAGS_AT] & MAYBE_SECOND != 0


def holds(frame: bytes) -> bool:
    """Whether the caller of a REQUEST, which was checked, understands `HELD`."""
    return frame[_FLAGS_AT] & HOLDS != 0


def is_traced(frame: bytes) -> bool:
    """Whether what a REQUEST takes, which was checked, is to be remembered."""
    return frame[_FLAGS_AT] & TRACED != 0


def is_held(frame: bytes) -> bool:
    """Whether a final frame, which was checked and is an ERROR, leaves the slots to be released."""
    return frame[_FLAGS_AT] & HELD != 0


def is_release(frame: bytes) -> bool:
    """Whether a frame only releases slots; it is not checked yet."""
    return len(frame) >= HEADER_BYTES and frame[_FLAGS_AT] & RELEASED != 0


def wants_stream(frame: bytes, at: int = 0) -> bool:
    """Whether the REQUEST at `at`, which somebody of our own has checked, is for a stream of answers."""
    return frame[at + _FLAGS_AT] & STREAM != 0


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


def read_request(frame: bytes) -> RequestFrame:
    """Reads a whole REQUEST frame that somebody of our own has checked: a node for its executor."""
    (
        _, _, _, _, _, _, client_id, request_no, body_bytes,
        epoch, budget, ack_no, body_at, reply_at, capacity, _, model_len, priority, attempt,
    ) = _SEALED_REQUEST.unpack_from(frame)  # fmt: skip
    descriptors_at = _SEALED_REQUEST.size + model_len
    return RequestFrame(
        client_id, request_no, epoch, budget, ack_no, body_at, body_bytes, reply_at, capacity, priority, attempt,
        frame[_SEALED_REQUEST.size : descriptors_at].decode(), frame[descriptors_at:],
    )  # fmt: skip


def decode_reply(frame: bytes, header: Header) -> ReplyFrame:
    """Reads the rest of a checked REPLY frame. Raises ProtocolError when its parts do not add up."""
    return _reply(frame, header.client_id, header.request_no, header.body_bytes)


def decode_error(frame: bytes, header: Header) -> ErrorFrame:
    """Reads the rest of a checked ERROR frame. Raises ProtocolError when it is cut."""
    return _error(frame, header.client_id, header.request_no)


def decode_final(frame: bytes) -> ReplyFrame | ErrorFrame:
    """Checks and reads the final frame of a request, whichever it is. Raises ProtocolError for anything else."""
    if len(frame) >= _SEALED_REPLY_BYTES:  # a sound reply is read in one step; what is not is told below
        (
            magic, crc, version, kind, _, size, client_id, request_no, body_bytes,
            epoch, sequence, accepted, outstanding, reply_at, executors, generation, queue_us, compute_us, rest_bytes,
        ) = _SEALED_REPLY.unpack_from(frame)  # fmt: skip
        if (
            kind == _REPLY_KIND
            and magic == MAGIC
            and version == VERSION
            and size == len(frame) == _SEALED_REPLY_BYTES + rest_bytes <= FRAME_BYTES_MAX
            and crc32(frame[CRC_FROM:]) == crc
        ):
            load = Load(sequence, accepted, outstanding, executors)
            return ReplyFrame(
                client_id, request_no, epoch, body_bytes, reply_at, generation, queue_us, compute_us,
                load, frame[_SEALED_REPLY_BYTES:],
            )  # fmt: skip
    try:
        kind, _, _, client_id, request_no, body_bytes = unpack_header(frame)
    except ProtocolError as error:
        error.fate = Fate.UNKNOWN  # an answer that cannot be read does not say that nothing ran
        raise
    if kind == _REPLY_KIND:
        return _reply(frame, client_id, request_no, body_bytes)
    if kind == _ERROR_KIND:
        return _error(frame, client_id, request_no)
    raise ProtocolError(f"the peer sent {Kind(kind).name} where a final frame was due; it must send frames in turn")


def _reply(frame: bytes, client_id: int, request_no: int, body_bytes: int) -> ReplyFrame:
    try:
        (
            epoch, sequence, accepted, outstanding, reply_at, executors, generation, queue_us, compute_us,
            descriptors_len,
        ) = _REPLY.unpack_from(frame, HEADER_BYTES)  # fmt: skip
    except struct.error as error:
        raise ProtocolError(f"a reply is cut ({error}); the peer must send whole frames") from None
    descriptors = frame[HEADER_BYTES + _REPLY.size :]
    if len(descriptors) != descriptors_len:
        raise ProtocolError("a reply's descriptors are not as long as it says; the peer must send whole frames")
    load = Load(sequence, accepted, outstanding, executors)
    whose = (client_id, request_no, epoch)
    return ReplyFrame(*whose, body_bytes, reply_at, generation, queue_us, compute_us, load, descriptors)


def _error(frame: bytes, client_id: int, request_no: int) -> ErrorFrame:
    try:
        epoch, sequence, accepted, outstanding, needed, code, fate, _, executors = _ERROR.unpack_from(
            frame, HEADER_BYTES
        )
    except struct.error as fault:
        raise ProtocolError(f"an error frame is cut ({fault}); the peer must send whole frames") from None
    text = frame[HEADER_BYTES + _ERROR.size :].decode(errors="replace")
    error = from_wire(code, fate, text, needed)
    return ErrorFrame(client_id, request_no, epoch, error, Load(sequence, accepted, outstanding, executors))
