"""Frames that no client of ours would send, the table of them, and bare peers that send them over local and over rpc.

Nothing of the channels is used here: what a channel refuses to send must still be refused by the node. Read
`tests/integration/test_bad_frames.py` next.
"""

from __future__ import annotations

import itertools
import struct
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

import grpc
import numpy as np

from discovery.registry import open_registry
from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.errors import (
    DuplicateRequest,
    InvalidArgument,
    OverspillError,
    ProtocolError,
    StaleEpoch,
    VersionMismatch,
)
from fabric.frame import NO_SLOT, Kind, RequestFrame, bare_frame, check_header, decode_error, encode_request
from fabric.hello import Hello, decode_welcome, encode_hello
from fabric.local.session import open_session
from fabric.rpc_fallback.wire import Method

if TYPE_CHECKING:
    from collections.abc import Callable

REPLY_AT = 1 << 16
_ids = itertools.count(1 << 50)
VALUES = np.arange(4, dtype=np.float32).tobytes()
BODY = VALUES.ljust(64, b"\0")


def descriptors(
    shape: tuple[int, ...] = (4,), nbytes: int = 16, *, dtype: int = DType.FP32, offset: int = 0, body_bytes: int = 64,
    count: int = 1, name: bytes = b"x",
) -> bytes:  # fmt: skip
    """Tensor descriptors as they travel, unchecked."""
    fixed = struct.pack("<HxxQ", count, body_bytes) + struct.pack(
        "<BBBxxxxxQQ", len(name), dtype, len(shape), offset, nbytes
    )
    return fixed + struct.pack(f"<{len(shape)}q", *shape) + name


def seal(frame: bytes) -> bytes:
    """The frame with the checksum that its bytes have now."""
    return frame[:4] + struct.pack("<I", crc32(frame[8:])) + frame[8:]


def poked(frame: bytes, at: int, value: bytes, *, sealed: bool = True) -> bytes:
    """The frame with other bytes at one place."""
    changed = frame[:at] + value + frame[at + len(value) :]
    return seal(changed) if sealed else changed


class Peer(Protocol):
    """A bare peer with one session."""

    client_id: int

    def request(self, **words: object) -> RequestFrame:
        """A good request of `double`, with these fields changed."""

    def ask(self, frame: bytes, body: bytes = BODY) -> OverspillError | None:
        """Sends a frame; the error that came back, None for a reply."""

    def close(self) -> None:
        """Hangs up."""


class _Numbered:
    """Requests with ids of their own."""

    def __init__(self) -> None:
        self.client_id = next(_ids)
        self.epoch = 0
        self._numbers = itertools.count(1)
        self._places = (NO_SLOT, NO_SLOT)

    def request(self, **words: object) -> RequestFrame:
        body_at, reply_at = self._places
        good = RequestFrame(
            self.client_id, next(self._numbers), self.epoch, 5_000_000, 0, body_at, 64, reply_at, 4096, 0, 0,
            "double", descriptors(),
        )  # fmt: skip
        return replace(good, **words)


def _error(frame: bytes) -> OverspillError | None:
    header = check_header(frame)
    if header.kind is Kind.ERROR:
        return decode_error(frame, header).error
    assert header.kind is Kind.REPLY, header
    return None


class RawLocal(_Numbered):
    """One Unix socket."""

    def __init__(self, registry: str) -> None:
        super().__init__()
        (instance,) = open_registry(registry).read()
        deadline = Deadline.after(5.0, time.monotonic())
        self.sock, welcome, self.arena = open_session(instance.local, Hello(self.client_id, 1 << 20), deadline)
        self.sock.settimeout(5.0)
        self.epoch = welcome.node_epoch
        self._places = (0, REPLY_AT)

    def ask(self, frame: bytes, body: bytes = BODY) -> OverspillError | None:
        self.arena.view[: len(body)] = body
        self.sock.send(frame)
        return _error(self.sock.recv(1 << 17))

    def close(self) -> None:
        self.sock.close()
        self.arena.close_fd()


class RawRpc(_Numbered):
    """One gRPC channel, without any of our client's code."""

    def __init__(self, registry: str) -> None:
        super().__init__()
        (instance,) = open_registry(registry).read()
        self._channel = grpc.insecure_channel(instance.rpc, (("grpc.use_local_subchannel_pool", 1),))
        frame = self._channel.unary_unary(Method.HELLO)(encode_hello(Hello(self.client_id, 1 << 20)), timeout=5.0)
        welcome = decode_welcome(frame, check_header(frame))
        self._session = bytes.fromhex(welcome.session)
        self.epoch = welcome.node_epoch

    def ask(self, frame: bytes, body: bytes = BODY) -> OverspillError | None:
        answer = self._channel.unary_unary(Method.CALL)(self._session + frame + body, timeout=5.0)
        size = struct.unpack_from("<I", answer, 12)[0]
        return _error(answer[:size])

    def close(self) -> None:
        self._channel.close()


PEERS: dict[str, type[RawLocal | RawRpc]] = {"local": RawLocal, "rpc": RawRpc}


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One bad frame: how it is made, which error answers it, words of that, and the body that lies beside it."""

    name: str
    make: Callable[[Peer], bytes]
    error: type[OverspillError] = ProtocolError
    words: tuple[str, ...] = ()
    body: bytes = BODY
    wires: tuple[str, ...] = ("local", "rpc")


def _good(peer: Peer, **words: object) -> bytes:
    return encode_request(peer.request(**words))


def _field(**words: object) -> Callable[[Peer], bytes]:
    return lambda peer: _good(peer, **words)


def _poke(at: int, value: bytes, *, sealed: bool = True) -> Callable[[Peer], bytes]:
    return lambda peer: poked(_good(peer), at, value, sealed=sealed)


def _described(**words: object) -> Callable[[Peer], bytes]:
    return lambda peer: _good(peer, descriptors=descriptors(**words))  # type: ignore[arg-type]


def _text(shape: tuple[int, ...], nbytes: int) -> Callable[[Peer], bytes]:
    told = descriptors(shape, nbytes, dtype=DType.BYTES, name=b"text")
    return lambda peer: _good(peer, model="text", descriptors=told)


_HEADERS = (
    FrameRow("garbage", lambda _: bytes(range(200)), words=("wrong magic", "check what connects"), wires=("local",)),
    FrameRow("too short", lambda _: b"OVSP", words=("shorter than its header", "whole frames"), wires=("local",)),
    FrameRow("magic", _poke(0, b"HTTP", sealed=False), words=("wrong magic", "check what connects")),
    FrameRow("version", _poke(8, b"\x63"), VersionMismatch, ("version 99", "update one")),
    FrameRow("checksum", _poke(4, b"\0\0\0\0", sealed=False), words=("checksum", "must be closed")),
    FrameRow("changed byte", _poke(50, b"\xee", sealed=False), words=("checksum", "must be closed")),
    FrameRow("unknown kind", _poke(9, b"\xc8"), words=("unknown kind 200", "update the older side")),
    FrameRow("kind of a node", lambda _: bare_frame(Kind.WELCOME), words=("WELCOME",)),
    FrameRow("cut", lambda peer: _good(peer)[:-7], words=("whole frames",), wires=("local",)),
    FrameRow("longer than it says", lambda peer: _good(peer) + b"more", words=("whole frames",), wires=("local",)),
    FrameRow("size of nothing", _poke(12, struct.pack("<I", 3)), words=("frame",)),
    FrameRow("size of all", _poke(12, struct.pack("<I", 0xFFFF_FFFF)), words=("frame",)),
)

_PARTS = (
    FrameRow("model longer than the frame", _poke(92, struct.pack("<H", 60_000)), words=("whole frames",)),
    FrameRow("model of no text", _poke(96, b"\xff\xfe"), words=("garbled", "whole frames")),
    FrameRow("no descriptors", _field(descriptors=b""), words=("descriptors", "whole frames")),
    FrameRow("cut descriptors", _field(descriptors=descriptors()[:-9]), words=("descriptors",)),
    FrameRow("dtype", _described(dtype=99), words=("descriptors",)),
    FrameRow("more tensors than come", _described(count=3), words=("descriptors",)),
    FrameRow("tensors beyond the limit", _described(count=5000), words=("5000 tensors",)),
    FrameRow("name of no text", _described(name=b"\xff\xfe"), words=("descriptors",)),
    FrameRow("negative dimension", _described(shape=(-4,)), words=("x",)),
    FrameRow("size that overflows", _described(shape=(1 << 62, 1 << 62), nbytes=0), words=("x",)),
    FrameRow("claimed size", _described(nbytes=1 << 40, body_bytes=1 << 40), words=("x",)),
    FrameRow("claimed body", _described(body_bytes=1 << 60), words=("over the limits",)),
    FrameRow("tensor outside of its body", _described(offset=1 << 30), words=("x",)),
    FrameRow("tensor at an odd place", _described(offset=4), words=("x",)),
    FrameRow("element longer than its tensor", _text((1,), 8), InvalidArgument, ("check the lengths",),
             struct.pack("<I4s", 1000, b"abcd").ljust(64, b"\0")),
    FrameRow("elements that do not come", _text((3,), 8), InvalidArgument, ("3 elements", "send"),
             struct.pack("<I4s", 4, b"abcd").ljust(64, b"\0")),
    FrameRow("bytes behind the last element", _text((1,), 12), InvalidArgument, ("check its shape",),
             struct.pack("<I4sI", 4, b"abcd", 0).ljust(64, b"\0")),
)  # fmt: skip

_LOCAL, _RPC = ("local",), ("rpc",)
_PLACES = (
    FrameRow("inputs outside of the arena", _field(body_offset=1 << 30), InvalidArgument, ("lease their place",),
             wires=_LOCAL),
    FrameRow("inputs that wrap around", _field(body_offset=(1 << 64) - 128), InvalidArgument, ("lease their place",),
             wires=_LOCAL),
    FrameRow("inputs at an odd place", _field(body_offset=3), InvalidArgument, ("multiple of 64",), wires=_LOCAL),
    FrameRow("more inputs than the arena", _field(body_bytes=1 << 40), InvalidArgument, ("lease their place",),
             wires=_LOCAL),
    FrameRow("inputs that lie nowhere", _field(body_offset=NO_SLOT), InvalidArgument, ("write them into the arena",),
             wires=_LOCAL),
    FrameRow("reply outside of the arena", _field(reply_offset=1 << 30), InvalidArgument, ("lease its place",),
             wires=_LOCAL),
    FrameRow("reply larger than the arena", _field(reply_capacity=1 << 40), InvalidArgument, ("lease its place",),
             wires=_LOCAL),
    FrameRow("fewer bytes than described", _field(body_bytes=0), words=(), error=InvalidArgument, wires=_LOCAL),
    FrameRow("body that does not come", _field(), words=("64 bytes of body and brings 0", "send all"), body=b"",
             wires=_RPC),
    FrameRow("body that is too long", _field(), words=("brings 128", "send all"), body=BODY * 2, wires=_RPC),
    FrameRow("claimed terabyte", _field(body_bytes=1 << 40), words=("send all",), wires=_RPC),
    FrameRow("another client's id", _field(client_id=77), InvalidArgument, ("use one id for both",)),
    FrameRow("earlier life of the node", _field(node_epoch=5), StaleEpoch, ("open",)),
    FrameRow("answered long ago", _field(request_no=1, ack_no=9), DuplicateRequest, ()),
)  # fmt: skip

FRAME_ROWS = (*_HEADERS, *_PARTS, *_PLACES)
