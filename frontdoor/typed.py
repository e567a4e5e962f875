"""Typed values of a message or of JSON as the raw bytes of a tensor, and back.

Most clients send raw bytes; these are for those that do not. FP16 and BF16 have no typed form in the protocol. This
module never reads a message as a whole. Read `frontdoor/grpc_infer.py` and `frontdoor/http_infer.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.dtypes import DType, bytes_decode, bytes_encode
from fabric.errors import InvalidArgument
from fabric.layout import NDIM_MAX
from frontdoor.failures import Refusal, Status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

FIELDS: Final[dict[DType, str]] = {
    DType.BOOL: "bool_contents",
    DType.INT8: "int_contents",
    DType.INT16: "int_contents",
    DType.INT32: "int_contents",
    DType.INT64: "int64_contents",
    DType.UINT8: "uint_contents",
    DType.UINT16: "uint_contents",
    DType.UINT32: "uint_contents",
    DType.UINT64: "uint64_contents",
    DType.FP32: "fp32_contents",
    DType.FP64: "fp64_contents",
    DType.BYTES: "bytes_contents",
}
"""The field of InferTensorContents that holds each datatype."""
TEXT_BYTES_MAX: Final = 8 << 20
"""JSON and typed values are read one by one, and some of that with the interpreter held, for half a second of so much;
raw bytes are not read at all."""
_PART: Final = 65_536
_DIM_MAX: Final = 2**63 - 1
_KINDS: Final[dict[str, frozenset[type]]] = {
    "b": frozenset({bool, int}),
    "i": frozenset({int}),
    "u": frozenset({int}),
    "f": frozenset({int, float}),
}
"""What may be given for a datatype, by numpy's letter of its kind: numpy itself would cut 1.5 to 1, and take null for
NaN."""
_UNTYPED = "input {!r} is {}, which has no typed form; send its bytes raw"


def dtype_named(tensor: str, name: str) -> DType:
    """The datatype of that name. Raises InvalidArgument for a word that is none."""
    found = DType.__members__.get(name)
    if found is None:
        known = ", ".join(DType.__members__)
        raise InvalidArgument(f"tensor {tensor[:80]!r} has datatype {name[:40]!r}; give one of {known}")
    return found


def check_text(nbytes: int) -> None:
    """Raises RESOURCE_EXHAUSTED for more text or typed values than are read here."""
    if nbytes > TEXT_BYTES_MAX:
        told = f"JSON and typed values of a request have {nbytes} bytes, at most {TEXT_BYTES_MAX}; send tensors raw"
        raise Refusal(Status.RESOURCE_EXHAUSTED, told)


def check_shape(name: str, shape: Sequence[int]) -> None:
    """Raises InvalidArgument for what is no shape; cheap, whatever was sent."""
    if len(shape) > NDIM_MAX:
        raise InvalidArgument(f"input {name[:80]!r} has {len(shape)} dimensions; at most {NDIM_MAX} travel")
    if any(not 0 <= dim <= _DIM_MAX for dim in shape):
        raise InvalidArgument(f"input {name[:80]!r} has a size below 0 or over 2^63 - 1; correct its shape")


def raw_of(name: str, dtype: DType, shape: Sequence[int], values: Sequence[Any]) -> memoryview:
    """The raw bytes of typed values. Raises InvalidArgument where their number or a value does not fit."""
    if dtype not in FIELDS:
        raise InvalidArgument(_UNTYPED.format(name, dtype.name))
    check_shape(name, shape)
    if len(values) != prod(shape):
        raise InvalidArgument(
            f"input {name[:80]!r} has {len(values)} values; its shape {list(shape)} takes {prod(shape)}"
        )
    if dtype is DType.BYTES:
        try:
            return memoryview(bytes_encode(values))
        except UnicodeEncodeError:
            raise InvalidArgument(f"a text of input {name[:80]!r} holds half a surrogate pair; correct it") from None
    if not {type(value) for value in values} <= _KINDS[dtype.numpy.kind]:
        raise InvalidArgument(f"a value of input {name[:80]!r} is no {dtype.name}; correct it")
    try:
        # Some at a time: numpy holds the interpreter meanwhile, which other requests want too.
        at = range(0, len(values), _PART)
        with np.errstate(over="raise"):
            return memoryview(b"".join(np.array(values[i : i + _PART], dtype.numpy).tobytes() for i in at))
    except (ArithmeticError, ValueError, TypeError):
        raise InvalidArgument(f"a value of input {name[:80]!r} is no {dtype.name}; correct it") from None


def values_of(dtype: DType, count: int, raw: memoryview) -> Iterator[list[Any]]:
    """The values of a tensor's raw bytes, for JSON, in lists of some: numbers, booleans, or texts (BYTES that are
    UTF-8).

    Raises InvalidArgument for what JSON cannot hold."""
    if dtype is DType.BYTES:
        try:
            elements = bytes_decode(bytes(raw), count)
            for at in range(0, count, _PART):
                yield [each.decode() for each in elements[at : at + _PART]]
            return
        except UnicodeDecodeError:
            raise InvalidArgument("an output holds bytes that are no text; ask for it with binary_data") from None
    if dtype not in FIELDS:
        raise InvalidArgument(f"an output is {dtype.name}, which JSON cannot hold; ask for it with binary_data")
    array = np.frombuffer(raw, dtype.numpy)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidArgument("an output holds infinity or NaN, which JSON cannot hold; ask for it with binary_data")
    for at in range(0, array.size, _PART):
        yield array[at : at + _PART].tolist()
