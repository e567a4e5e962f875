"""Takes the tensors out of a message before protobuf reads it, and puts them behind one that protobuf has written.

Protobuf would copy each tensor once in each direction, and a copy of 16 MiB costs milliseconds with the interpreter
held. In the wire format a repeated field may stand anywhere, and fields are plainly marked (protobuf.dev, Encoding): so
`raw_input_contents` is cut out as views of the bytes that came, and `raw_output_contents` is appended. This module
understands no field but that one. Read `frontdoor/grpc_infer.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import Final

from fabric.errors import InvalidArgument

RAW_INPUT: Final = 7
RAW_OUTPUT: Final = 6
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
FIELDS_MAX: Final = 8192
"""Top-level fields of one message, each of which costs this loop some microseconds: far more than 256 tensors need, and
no more than a few ten milliseconds of everybody's time."""
_CUT: Final = "the message is cut or garbled; send a whole ModelInferRequest"


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise InvalidArgument(_CUT)
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value, at
        shift += 7


def split(raw: bytes, field: int = RAW_INPUT) -> tuple[bytes, tuple[memoryview, ...]]:
    """The message without its top-level `field`, and the values of that, uncopied. Raises InvalidArgument for bytes
    that are no message."""
    data = memoryview(raw)
    kept: list[memoryview] = []
    found: list[memoryview] = []
    at = kept_from = fields = 0
    while at < len(data):
        start = at
        fields += 1
        if fields > FIELDS_MAX:
            raise InvalidArgument(f"the message has over {FIELDS_MAX} fields; send fewer tensors and parameters")
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
            if size > len(data) - at:
                raise InvalidArgument(_CUT)
            if tag >> 3 == field:
                kept.append(data[kept_from:start])
                found.append(data[at : at + size])
                kept_from = at + size
            at += size
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in {_FIXED64, _FIXED32}:
            at += 8 if kind == _FIXED64 else 4
        else:
            raise InvalidArgument(_CUT)
        if at > len(data):
            raise InvalidArgument(_CUT)
    kept.append(data[kept_from:])
    return b"".join(kept), tuple(found)


def _encoded(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def joined(head: bytes, values: list[memoryview | bytes], field: int = RAW_OUTPUT) -> bytes:
    """The message `head` with `values` as its repeated top-level `field`: one copy of each."""
    mark = _encoded(field << 3 | _BYTES)
    parts: list[memoryview | bytes] = [head]
    for value in values:
        parts += (mark, _encoded(len(value)), value)
    return b"".join(parts)


def wrapped(field: int, message: bytes) -> bytes:
    """A message whose only field is another message."""
    return b"".join((_encoded(field << 3 | _BYTES), _encoded(len(message)), message))
