"""What travels on the rpc wire: names of methods, the prefix of messages, frames made of calls and answers.

A message of a caller is `session (16 bytes), frame, body`, one of the port `frame, body`. The session stands in front
of the frame, not in gRPC's metadata, because a prefix costs nothing and metadata is parsed by gRPC on each call. This
module never sends. Read `fabric/rpc_fallback/lane.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import ArenaFull, Fate, OverspillError, ProtocolError, ResourceExhausted
from fabric.frame import (
    FRAME_BYTES_MAX,
    HEADER_BYTES,
    NO_SLOT,
    ErrorFrame,
    Header,
    Kind,
    Load,
    ReplyFrame,
    RequestFrame,
    bare_frame,
    check_header,
    decode_error,
    decode_reply,
    decode_request,
    encode_error,
    encode_reply,
    encode_request,
)
from fabric.layout import Layout, parse_layout
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, RequestId
from fabric.transport import Answer, Call, WireName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.memory.arena import Arena

SERVICE = "overspill.Fabric"
SESSION_BYTES = 16
TOKEN_METADATA = "authorization"  # noqa: S105 - the name of a header
"""The operator's token goes with Hello alone, where gRPC's own tools would put it, as `Bearer TOKEN`."""

BULK_BYTES = 256 * 1024
"""From here on a body takes a lane, or the stream: below, one gRPC message is as fast."""
PIECE_BYTES = 1024 * 1024
"""Of a streamed body: large enough to hide a piece's cost (60 us), small enough to let small calls pass."""
INLINE_REPLY_BYTES = 4 << 20
"""A larger reply to a small call is fetched by a lane or the stream: one message of it would block small calls."""

CLIENT = struct.Struct("<Q")
"""An offer of RDMA comes without a session: whose it is stands in front of it."""
OFFER_BYTES_MAX = 4096
_SIZE_AT = 12  # where a frame's header says how long the frame is
_SIZE = struct.Struct("<I")
_LOAD = struct.Struct("<QQQI")
NO_LOAD = Load(0, 0, 0, 0)


class Method:
    """Full names of the methods."""

    HELLO = f"/{SERVICE}/Hello"
    CALL = f"/{SERVICE}/Call"
    STREAM = f"/{SERVICE}/Stream"
    PING = f"/{SERVICE}/Ping"
    CANCEL = f"/{SERVICE}/Cancel"
    BYE = f"/{SERVICE}/Bye"
    PAGE = f"/{SERVICE}/Page"
    LINE = f"/{SERVICE}/Line"
    RDMA = f"/{SERVICE}/RdmaLine"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final frame of a request, as the port holds it until it is delivered: with a reply, its body's memory."""

    frame: bytes
    body: bytes | memoryview = b""
    lease: Lease | None = None

    def release(self) -> None:
        """Gives the body's memory back."""
        if self.lease is not None:
            self.lease.release()


def frame_size(buffer: bytes | bytearray | memoryview, at: int = 0) -> int:
    """How long the frame is that begins at `at`. Raises ProtocolError when it cannot be one."""
    if len(buffer) < at + HEADER_BYTES:
        raise ProtocolError(f"{len(buffer)} bytes hold no frame; the peer must send whole frames")
    (size,) = _SIZE.unpack_from(buffer, at + _SIZE_AT)
    if not HEADER_BYTES <= size <= FRAME_BYTES_MAX:
        raise ProtocolError(f"the peer claims a frame of {size} bytes; check what connects to this address")
    return int(size)


def split(message: bytes, at: int = 0) -> tuple[bytes, Header, memoryview]:
    """Checked frame, its header, and the body behind it. Raises ProtocolError unless the body has the size it says."""
    end = at + frame_size(message, at)
    frame = message[at:end]
    header = check_header(frame)
    body = memoryview(message)[end:]
    if header.kind in {Kind.REQUEST, Kind.REPLY} and header.body_bytes != len(body):
        raise ProtocolError(
            f"a {header.kind.name} says {header.body_bytes} bytes of body and brings {len(body)}; send all of them"
        )
    return frame, header, body


def request_frame(call: Call, node_epoch: int, budget_us: int) -> bytes:
    """The REQUEST of one attempt. Raises InvalidArgument when names and shapes do not fit a frame."""
    layout = call.body.layout
    return encode_request(
        RequestFrame(
            call.id.client_id,
            call.id.request_no,
            node_epoch,
            budget_us,
            call.ack_no,
            NO_SLOT,
            layout.body_bytes,
            NO_SLOT,
            call.reply_bytes,
            call.priority,
            call.attempt,
            call.model,
            layout.encoded,
        )
    )


def read_request(frame: bytes, header: Header) -> tuple[RequestFrame, Layout]:
    """A request and its body's layout. Raises ProtocolError for anything else."""
    if header.kind is not Kind.REQUEST:
        raise ProtocolError(f"the peer sent {header.kind.name} where REQUEST was due; check what it is")
    request = decode_request(frame, header)
    layout = parse_layout(request.descriptors)
    if layout.body_bytes != header.body_bytes:
        raise ProtocolError(
            f"a request's tensors take {layout.body_bytes} bytes, its body {header.body_bytes}; send them as they are"
        )
    return request, layout


def outcome_of(answer: Answer, request: RequestFrame, node_epoch: int) -> Outcome:
    """The REPLY of an answer; its body stays where it is."""
    layout = answer.layout
    frame = encode_reply(
        ReplyFrame(
            request.client_id,
            request.request_no,
            node_epoch,
            layout.body_bytes,
            NO_SLOT,
            answer.generation,
            answer.queue_us,
            answer.compute_us,
            answer.load,
            layout.encoded,
        )
    )
    if isinstance(answer.memory, Lease):
        return Outcome(frame, answer.memory.view[: layout.body_bytes], answer.memory)
    return Outcome(frame, answer.memory)


def error_outcome(error: OverspillError, request: RequestId, node_epoch: int) -> Outcome:
    """The ERROR that ends a request, or a HELLO. The caller's arena here may be full where another node's is not."""
    if isinstance(error, ArenaFull) and error.fate is Fate.NEVER_RAN:
        error = ResourceExhausted(str(error), error.fate)
    return Outcome(encode_error(ErrorFrame(request.client_id, request.request_no, node_epoch, error, NO_LOAD)))


def read_reply(frame: bytes, header: Header, request: RequestId) -> ReplyFrame:
    """The reply to `request`. Raises the error that the peer sent instead, or ProtocolError."""
    if header.kind is Kind.ERROR:
        raise decode_error(frame, header).error
    if header.kind is not Kind.REPLY:
        raise ProtocolError(f"the peer sent {header.kind.name} where REPLY was due; its channel is closed")
    if (header.client_id, header.request_no) != (request.client_id, request.request_no):
        raise ProtocolError("the peer answered another request than was asked; its channel is closed")
    reply = decode_reply(frame, header)
    if parse_layout(reply.descriptors).body_bytes != header.body_bytes:
        raise ProtocolError("a reply's tensors and its body differ in size; its channel is closed")
    return reply


def answer_of(reply: ReplyFrame, memory: bytes | Lease, *, lane: bool) -> Answer:
    """The answer that a reply and the memory with its body make."""
    return Answer(
        parse_layout(reply.descriptors),
        memory,
        reply.generation,
        reply.queue_us,
        reply.compute_us,
        reply.load,
        WireName.RPC,
        lane,
    )


def lease_or_none(arena: Arena | None, nbytes: int) -> Lease | None:
    """A slot of the arena, or None where there is none: no arena, or no room."""
    try:
        return Lease.of(arena, nbytes) if arena is not None else None
    except ResourceExhausted:
        return None


def fill(view: memoryview, pieces: Iterator[bytes]) -> None:
    """Writes pieces one after the other until `view` is full. Raises ProtocolError when they are more or fewer."""
    at = 0
    for piece in pieces:
        end = at + len(piece)
        if end > len(view):
            raise ProtocolError(f"a streamed body is longer than the {len(view)} bytes that its frame says")
        view[at:end] = piece
        at = end
    if at != len(view):
        raise ProtocolError(f"a streamed body ended after {at} of {len(view)} bytes; send all of them")


def pong_frame(load: Load) -> bytes:
    """The answer to a PING."""
    payload = _LOAD.pack(load.sequence, load.accepted, load.outstanding_us, load.executors)
    return bare_frame(Kind.PONG, payload=payload)


def read_pong(frame: bytes) -> Load:
    """The load in a PONG. Raises the error that the peer sent instead, or ProtocolError."""
    header = check_header(frame)
    if header.kind is Kind.ERROR:
        raise decode_error(frame, header).error
    if header.kind is not Kind.PONG or len(frame) != HEADER_BYTES + _LOAD.size:
        raise ProtocolError("the peer's answer to PING is none; its channel is closed")
    return Load(*_LOAD.unpack_from(frame, HEADER_BYTES))


def inline_answer(message: bytes, request: RequestId, arena: Arena | None) -> Answer:
    """The answer in one whole message of the port's: small bodies as bytes, others copied to a slot where there is one.

    Raises the error that the peer sent instead, or ProtocolError.
    """
    frame, header, body = split(message)
    reply = read_reply(frame, header, request)
    lease = lease_or_none(arena, len(body)) if len(body) >= SMALL_BODY_BYTES else None
    if lease is None:
        return answer_of(reply, bytes(body), lane=False)
    lease.view[: len(body)] = body
    return answer_of(reply, lease, lane=False)
