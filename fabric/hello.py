"""What two ends tell each other beside requests: HELLO from the caller, WELCOME from the node, PONG for a PING.

Every wire carries the same ones. The greeting is JSON in a frame, because it is read once per connection and people
read it in traces. Each field that a peer sends is checked for its type and range before anybody uses it. This module
never sends. Read `fabric/transport.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from fabric.errors import ProtocolError, VersionMismatch
from fabric.frame import HEADER_BYTES, VERSION, VERSION_OLDEST, Header, Kind, Load, bare_frame

_U64 = 1 << 64
_TEXT_MAX = 255
_PONG = struct.Struct("<QQQI")


@dataclass(frozen=True, slots=True)
class Hello:
    """A caller's first words. `session` is empty for a new tenant, else the token of the one that it joins.
    `arena_bytes` is what the caller would like to have, 0 for the node's choice."""

    client_id: int
    arena_bytes: int = 0
    session: str = ""
    version_oldest: int = VERSION_OLDEST
    version_newest: int = VERSION


@dataclass(frozen=True, slots=True)
class Welcome:
    """The node's answer. `sockets_max` bounds the sockets of the session; `lane_port` is 0 where there is no lane."""

    node_id: str
    node_epoch: int
    version: int
    session: str
    arena_bytes: int
    sockets_max: int
    lane_port: int = 0
    lane_token: str = ""


def encode_hello(hello: Hello) -> bytes:
    """A HELLO frame."""
    fields = {
        "client_id": f"{hello.client_id:016x}",
        "versions": [hello.version_oldest, hello.version_newest],
        "arena_bytes": hello.arena_bytes,
        "session": hello.session,
    }
    return bare_frame(Kind.HELLO, hello.client_id, 0, json.dumps(fields).encode())


def encode_welcome(welcome: Welcome, client_id: int = 0) -> bytes:
    """A WELCOME frame."""
    fields = {
        "node_id": welcome.node_id,
        "node_epoch": welcome.node_epoch,
        "version": welcome.version,
        "session": welcome.session,
        "arena_bytes": welcome.arena_bytes,
        "limits": {"sockets": welcome.sockets_max},
        "lane": {"port": welcome.lane_port, "token": welcome.lane_token},
    }
    return bare_frame(Kind.WELCOME, client_id, 0, json.dumps(fields).encode())


def decode_hello(frame: bytes, header: Header) -> Hello:
    """Reads a HELLO of checked header. Raises ProtocolError when it is none."""
    fields = _Fields(frame, header, Kind.HELLO)
    oldest, newest = fields.pair("versions")
    client_id = fields.text("client_id")
    try:
        number = int(client_id, 16)
    except ValueError:
        number = -1
    if not 0 <= number < _U64:
        raise ProtocolError(f"a HELLO has client_id {client_id[:40]!r}; it must be 64 bits in hexadecimal digits")
    return Hello(number, fields.number("arena_bytes"), fields.text("session"), oldest, newest)


def decode_welcome(frame: bytes, header: Header) -> Welcome:
    """Reads a WELCOME of checked header. Raises ProtocolError when it is none."""
    fields = _Fields(frame, header, Kind.WELCOME)
    limits, lane = fields.inner("limits"), fields.inner("lane")
    return Welcome(
        fields.text("node_id"),
        fields.number("node_epoch"),
        fields.number("version"),
        fields.text("session"),
        fields.number("arena_bytes"),
        limits.number("sockets"),
        lane.number("port"),
        lane.text("token"),
    )


def encode_pong(client_id: int, request_no: int, load: Load) -> bytes:
    """A PONG frame: the node's load, for the PING of the same numbers."""
    payload = _PONG.pack(load.sequence, load.accepted, load.outstanding_us, load.executors)
    return bare_frame(Kind.PONG, client_id, request_no, payload)


def decode_pong(frame: bytes, header: Header) -> Load:
    """Reads a PONG of checked header. Raises ProtocolError when it is none."""
    if header.kind is not Kind.PONG or header.frame_bytes != HEADER_BYTES + _PONG.size:
        raise ProtocolError(f"the peer sent {header.kind.name} where PONG was due; the peer must answer each PING")
    return Load(*_PONG.unpack_from(frame, HEADER_BYTES))


def common_version(hello: Hello) -> int:
    """The newest version that both ends speak. Raises VersionMismatch when there is none."""
    version = min(hello.version_newest, VERSION)
    if version < max(hello.version_oldest, VERSION_OLDEST):
        raise VersionMismatch(
            f"the caller speaks versions {hello.version_oldest} to {hello.version_newest} of the protocol,"
            f" this node {VERSION_OLDEST} to {VERSION}; update the older side"
        )
    return version


class _Fields:
    """One JSON object of a peer, read field by field with checks."""

    def __init__(self, frame: bytes, header: Header, kind: Kind, values: object = None) -> None:
        self._kind = kind
        if values is None:
            if header.kind is not kind:
                raise ProtocolError(f"the peer sent {header.kind.name} where {kind.name} was due; check what it is")
            try:
                values = json.loads(frame[HEADER_BYTES:])
            except (ValueError, RecursionError) as error:
                raise ProtocolError(f"a {kind.name} holds no JSON ({error}); check what connects here") from None
        if not isinstance(values, dict):
            raise ProtocolError(f"a {kind.name} holds no JSON object where one is due; check what connects here")
        self._frame, self._header = frame, header
        self._values: dict[str, object] = values

    def text(self, name: str) -> str:
        value = self._values.get(name, "")
        if not isinstance(value, str) or len(value) > _TEXT_MAX:
            raise self._wrong(name, f"text of at most {_TEXT_MAX} characters")
        return value

    def number(self, name: str) -> int:
        value = self._values.get(name, 0)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _U64:
            raise self._wrong(name, "a whole number of 64 bits")
        return value

    def pair(self, name: str) -> tuple[int, int]:
        value = self._values.get(name)
        if isinstance(value, list) and len(value) == 2:
            first, second = value
            if type(first) is int and type(second) is int:
                return first, second
        raise self._wrong(name, "two whole numbers")

    def inner(self, name: str) -> _Fields:
        return _Fields(self._frame, self._header, self._kind, self._values.get(name, {}))

    def _wrong(self, name: str, wanted: str) -> ProtocolError:
        return ProtocolError(f"the field {name} of a {self._kind.name} must be {wanted}; update the older side")
