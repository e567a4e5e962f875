"""Tensor descriptors: which tensors lie where in a body, as values and as the bytes that travel.

A body is one run of memory in which each tensor starts at a multiple of 64 bytes (a cache line; also what CUDA copies
and vector loads like). Descriptors repeat from request to request, so both directions are cached by value. This module
never reads a body. Read `fabric/message.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Final

from fabric.descriptors import COUNT, TENSOR
from fabric.dtypes import DType
from fabric.errors import InvalidArgument, ProtocolError
from fabric.resident import DIGEST_BYTES, ENTRY_BYTES, RESIDENTS_MAX, Ref, pack_refs, refs_of

ALIGN_BYTES: Final = 64
TENSORS_MAX: Final = 256
"""More inputs than any published model of the field; Triton sets no limit, we bound every table."""
NDIM_MAX: Final = 32
NAME_BYTES_MAX: Final = 255
BODY_BYTES_MAX: Final = 1 << 40


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, dtype and shape of one tensor; `nbytes` is its size in the body (BYTES: of its serialised form).

    `resident` is the name (fabric/resident.py) of one that nodes keep, empty for any other; one that is `referred` lies
    at the node, and takes no place in the body."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    nbytes: int
    resident: bytes = b""
    referred: bool = False

    @classmethod
    def of(cls, name: str, dtype: DType, shape: tuple[int, ...], serialised_bytes: int | None = None) -> TensorSpec:
        """The spec of a tensor whose size follows from its shape, or of a BYTES tensor of `serialised_bytes`."""
        nbytes = prod(shape) * dtype.numpy.itemsize if serialised_bytes is None else serialised_bytes
        return cls(name, dtype, shape, nbytes)


@dataclass(frozen=True, slots=True)
class Layout:
    """The tensors of one body: `offsets[i]` is where `specs[i]` starts, `encoded` what travels."""

    specs: tuple[TensorSpec, ...]
    offsets: tuple[int, ...]
    body_bytes: int
    encoded: bytes
    residents: int = 0


EMPTY: Final = Layout((), (), 0, COUNT.pack(0, 0, 0))


@lru_cache(maxsize=4096)
def layout_of(specs: tuple[TensorSpec, ...]) -> Layout:
    """Places tensors one after the other, each aligned, and encodes their descriptors.

    Raises InvalidArgument for more than 256 tensors, repeated or empty names, or names over 255 bytes of UTF-8.
    """
    if len(specs) > TENSORS_MAX:
        raise InvalidArgument(f"a request has {len(specs)} tensors; at most {TENSORS_MAX} travel, so join some")
    if len({spec.name for spec in specs}) != len(specs):
        raise InvalidArgument("two tensors have the same name; name each one differently")
    at, offsets, parts, refs = 0, [], [b""], []
    for index, spec in enumerate(specs):
        if not isinstance(spec.name, str):
            raise InvalidArgument(f"a tensor is named {spec.name!r}, which is no text; name each one with a str")
        raw_name = spec.name.encode(errors="replace")  # a lone surrogate is no text: it travels as "?"
        if not 0 < len(raw_name) <= NAME_BYTES_MAX:
            raise InvalidArgument(f"tensor name {spec.name[:40]!r} is empty or over {NAME_BYTES_MAX} bytes; shorten it")
        if len(spec.shape) > NDIM_MAX:
            raise InvalidArgument(f"tensor {spec.name!r} has {len(spec.shape)} dimensions; at most {NDIM_MAX} travel")
        offsets.append(at)
        parts.append(TENSOR.pack(len(raw_name), spec.dtype, len(spec.shape), at, spec.nbytes))
        parts.append(struct.pack(f"<{len(spec.shape)}q", *spec.shape))
        parts.append(raw_name)
        if spec.resident:
            assert len(spec.resident) == DIGEST_BYTES, "a name is a hash"
            refs.append(Ref(index, not spec.referred, spec.nbytes, spec.resident))
        if not spec.referred:
            at = -(-(at + spec.nbytes) // ALIGN_BYTES) * ALIGN_BYTES
    if len(refs) > RESIDENTS_MAX:
        raise InvalidArgument(f"a request has {len(refs)} residents; at most {RESIDENTS_MAX} travel, so join some")
    if at > BODY_BYTES_MAX:
        raise InvalidArgument(
            f"the tensors take {at} bytes; at most {BODY_BYTES_MAX} travel in one request, so split it"
        )
    parts[0] = COUNT.pack(len(specs), len(refs), at)
    return Layout(specs, tuple(offsets), at, b"".join(parts) + pack_refs(tuple(refs)), len(refs))


@lru_cache(maxsize=4096)
def parse_layout(encoded: bytes) -> Layout:
    """Reads and checks descriptors that a peer sent. Every length is checked before it is used.

    Raises ProtocolError when the bytes are not descriptors of this protocol.
    """
    try:
        count, residents, body_bytes = COUNT.unpack_from(encoded, 0)
        refs = {ref.place: ref for ref in refs_of(encoded)} if residents else {}
        tensors_end = len(encoded) - residents * ENTRY_BYTES
        at, specs, offsets = COUNT.size, [], []
        if count > TENSORS_MAX or body_bytes > BODY_BYTES_MAX:
            raise ProtocolError(
                f"descriptors claim {count} tensors and {body_bytes} bytes, over the limits; close the peer"
            )
        for index in range(count):
            name_len, dtype, ndim, offset, nbytes = TENSOR.unpack_from(encoded, at)
            at += TENSOR.size
            shape = struct.unpack_from(f"<{ndim}q", encoded, at) if ndim <= NDIM_MAX else (-1,)
            at += 8 * ndim
            raw_name = encoded[at : at + name_len]
            at += name_len
            ref = refs.pop(index, None)
            if ref is None:
                spec = TensorSpec(raw_name.decode(), DType(dtype), shape, nbytes)
            else:
                spec = TensorSpec(raw_name.decode(), DType(dtype), shape, nbytes, ref.digest, not ref.carried)
            _check(spec, offset, body_bytes, len(raw_name) == name_len, ref)
            specs.append(spec)
            offsets.append(offset)
    except (struct.error, UnicodeDecodeError, ValueError, OverflowError, InvalidArgument) as error:
        raise ProtocolError(
            f"tensor descriptors are cut or garbled ({error}); the peer must send whole frames"
        ) from None
    if at != tensors_end or refs or len({spec.name for spec in specs}) != count:
        raise ProtocolError("tensor descriptors have a tail or repeat a name; the peer must send each tensor once")
    return Layout(tuple(specs), tuple(offsets), body_bytes, encoded, residents)


def _check(spec: TensorSpec, offset: int, body_bytes: int, name_whole: bool, ref: Ref | None) -> None:
    sized = spec.dtype is DType.BYTES or prod(spec.shape) * spec.dtype.numpy.itemsize == spec.nbytes
    in_body = offset % ALIGN_BYTES == 0 and offset + spec.nbytes <= body_bytes  # Python's integers cannot overflow
    if ref is not None:
        sized = sized and ref.nbytes == spec.nbytes and spec.dtype is not DType.BYTES
        in_body = in_body or not ref.carried
    if not (spec.name and name_whole and in_body and sized and all(dim >= 0 for dim in spec.shape)):
        raise ProtocolError(f"tensor {spec.name[:40]!r} claims a size or place that does not add up; close the peer")
