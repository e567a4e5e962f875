"""The datatypes of the Open Inference Protocol, and how each stands in memory.

Names, sizes and the layout of BYTES (4-byte little-endian length before each element) are those of the protocol's
binary tensor data (KServe Open Inference Protocol v2, "Tensor Data"). BF16 has no numpy dtype of its own: it travels
as uint16, and `bf16_to_float32` / `float32_to_bf16` convert. This module never touches a slot. Read `fabric/layout.py`.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt


class DType(IntEnum):
    """A datatype of the Open Inference Protocol; the value is its number in our tensor descriptors."""

    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BF16 = 13
    BYTES = 14

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy dtype of one element in memory; BF16 is its 16 bits, BYTES the bytes of its serialised form."""
        return _NUMPY[self]

    @property
    def steers_memory(self) -> bool:
        """Whether values of this dtype choose addresses (ids, indices, masks, lengths), so that they must not change
        between a check and a use."""
        return self not in _FLOATS


_NUMPY: dict[DType, np.dtype[Any]] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.UINT8: np.dtype(np.uint8),
    DType.UINT16: np.dtype("<u2"),
    DType.UINT32: np.dtype("<u4"),
    DType.UINT64: np.dtype("<u8"),
    DType.INT8: np.dtype(np.int8),
    DType.INT16: np.dtype("<i2"),
    DType.INT32: np.dtype("<i4"),
    DType.INT64: np.dtype("<i8"),
    DType.FP16: np.dtype("<f2"),
    DType.FP32: np.dtype("<f4"),
    DType.FP64: np.dtype("<f8"),
    DType.BF16: np.dtype("<u2"),
    DType.BYTES: np.dtype(np.uint8),
}
_FLOATS: Final = frozenset({DType.FP16, DType.FP32, DType.FP64, DType.BF16})
_FROM_NUMPY: dict[np.dtype[Any], DType] = {
    dtype: name for name, dtype in _NUMPY.items() if name not in (DType.BF16, DType.BYTES)
}


def dtype_of(array: np.ndarray[Any, Any]) -> DType:
    """The protocol's datatype of a numpy array. Raises InvalidArgument when there is none (complex, datetime, ...)."""
    found = _FROM_NUMPY.get(array.dtype)
    if found is not None:
        return found
    if array.dtype.kind in "SUO":
        return DType.BYTES
    if array.dtype.name == "bfloat16":  # ml_dtypes registers it; we need no import to know it
        return DType.BF16
    swapped = _FROM_NUMPY.get(array.dtype.newbyteorder("<"))
    if swapped is not None:
        return swapped
    raise InvalidArgument(
        f"arrays of dtype {array.dtype} cannot travel; convert to one of {', '.join(DType.__members__)}"
    )


def bytes_encode(elements: Iterable[object]) -> bytes:
    """Serialises BYTES elements: each a 4-byte little-endian length, then its bytes; str is encoded as UTF-8.
    Raises InvalidArgument for an element that is neither bytes nor str, or longer than 4 GiB - 1."""
    parts: list[bytes] = []
    for element in elements:
        if isinstance(element, str):
            raw = element.encode()
        elif isinstance(element, (bytes, bytearray, memoryview)):
            raw = bytes(element)
        else:
            raise InvalidArgument(f"a BYTES tensor holds {type(element).__name__}; give bytes or str elements")
        if len(raw) > 0xFFFF_FFFF:
            raise InvalidArgument("an element of a BYTES tensor is longer than 4 GiB - 1; split it")
        parts += (struct.pack("<I", len(raw)), raw)
    return b"".join(parts)


def bytes_decode(data: bytes, count: int) -> npt.NDArray[np.object_]:
    """Reads `count` BYTES elements of a private copy into a 1-D object array of bytes.
    Raises InvalidArgument unless the data holds exactly that many."""
    out = np.empty(count, dtype=object)
    at, end = 0, len(data)
    for index in range(count):
        if at + 4 > end:
            raise InvalidArgument(f"a BYTES tensor of {count} elements ends in element {index}; send all of its bytes")
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        if size > end - at:
            raise InvalidArgument(f"element {index} of a BYTES tensor is longer than the tensor; check the lengths")
        out[index] = data[at : at + size]
        at += size
    if at != end:
        raise InvalidArgument(f"a BYTES tensor has {end - at} bytes after its last element; check its shape")
    return out


def float32_to_bf16(array: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Rounds float32 to the 16 bits of BF16, to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = (bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16
    nan = np.isnan(array)
    return np.where(nan, np.uint32(0x7FC0), rounded).astype("<u2")


def bf16_to_float32(bits: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Widens the 16 bits of BF16 to float32, exactly."""
    return (bits.astype("<u4") << 16).view("<f4")
