"""Datatypes have the numbers, sizes and byte layouts of the Open Inference Protocol."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fabric.dtypes import DType, bf16_to_float32, bytes_decode, bytes_encode, dtype_of, float32_to_bf16
from fabric.errors import InvalidArgument

SIZES = {"BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1, "INT16": 2, "INT32": 4, "INT64": 8}
SIZES |= {"FP16": 2, "FP32": 4, "FP64": 8, "BF16": 2, "BYTES": 1}


def test_names_and_sizes_are_the_protocols() -> None:
    assert {dtype.name: dtype.numpy.itemsize for dtype in DType} == SIZES


@pytest.mark.parametrize("dtype", [dtype for dtype in DType if dtype not in (DType.BF16, DType.BYTES)])
def test_numpy_and_back(dtype: DType) -> None:
    assert dtype_of(np.zeros(1, dtype.numpy)) is dtype
    assert dtype_of(np.zeros(1, dtype.numpy.newbyteorder(">"))) is dtype


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([b"a"]), np.array([b"a"], object)])
def test_text_is_bytes(array: np.ndarray) -> None:
    assert dtype_of(array) is DType.BYTES


@pytest.mark.parametrize("name", ["complex64", "datetime64[s]", "timedelta64[s]", "longdouble", "V8"])
def test_what_cannot_travel(name: str) -> None:
    with pytest.raises(InvalidArgument, match="convert"):
        dtype_of(np.zeros(1, name))


def test_what_steers_memory() -> None:
    assert {dtype for dtype in DType if not dtype.steers_memory} == {DType.FP16, DType.FP32, DType.FP64, DType.BF16}


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_bytes_round_trip(elements: list[bytes]) -> None:
    raw = bytes_encode(elements)
    assert bytes_decode(raw, len(elements)).tolist() == elements
    for cut in range(0, len(raw), max(1, len(raw) // 7)):
        with pytest.raises(InvalidArgument):
            bytes_decode(raw[:cut], len(elements))
    with pytest.raises(InvalidArgument, match="after its last"):
        bytes_decode(raw + b"\0", len(elements))


def test_bytes_are_laid_out_as_the_protocol_says() -> None:
    assert bytes_encode([b"ab", "ü"]) == struct.pack("<I", 2) + b"ab" + struct.pack("<I", 2) + "ü".encode()
    with pytest.raises(InvalidArgument, match="int"):
        bytes_encode([3])


def test_a_length_that_lies_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="lengths"):
        bytes_decode(struct.pack("<I", 0xFFFF_FFFF) + b"abc", 1)


@given(hnp.arrays(np.float32, 8, elements=st.floats(width=32, allow_nan=True)))
def test_bf16_rounds_to_nearest(array: np.ndarray) -> None:
    back = bf16_to_float32(float32_to_bf16(array))
    finite = np.isfinite(array) & (np.abs(array) < 3e38)
    assert np.array_equal(np.isnan(array), np.isnan(back))
    # 8 bits of significand: half a unit in the last place is 2^-8 of the value; below the normal range it is absolute.
    error = np.abs(back[finite].astype(np.float64) - array[finite])
    assert np.all(error <= np.maximum(np.abs(array[finite].astype(np.float64)) * 2.0**-8, 2.0**-134))


def test_bf16_keeps_what_fits_and_ties_to_even() -> None:
    exact = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf], np.float32)
    assert bf16_to_float32(float32_to_bf16(exact)).tobytes() == exact.tobytes()
    ties = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)  # halfway above an even, above an odd one
    assert float32_to_bf16(ties).tolist() == [0x3F80, 0x3F82]
