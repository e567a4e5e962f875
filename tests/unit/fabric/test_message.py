"""Inputs of every kind become tensors, bodies hold them at their places, and what cannot travel is named."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.memory.lease import tensors
from fabric.message import Body, RequestId, Tensor, small_body, tensors_of

dtypes = st.sampled_from([dtype.numpy for dtype in DType if dtype not in (DType.BF16, DType.BYTES)])
arrays = hnp.arrays(dtypes, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6))


def _read(body: Body) -> dict[str, np.ndarray]:
    return dict(zip((spec.name for spec in body.layout.specs), tensors(body.view(), body.layout), strict=True))


@given(st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=9), arrays, max_size=5))
def test_arrays_come_out_as_they_went_in(inputs: dict[str, np.ndarray]) -> None:
    back = _read(small_body(tensors_of(inputs)))
    assert list(back) == list(inputs)
    for name, array in inputs.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24).reshape(4, 6).T,
        np.arange(24)[::-2],
        np.asfortranarray(np.arange(24.0).reshape(4, 6)),
        np.broadcast_to(np.float32(3), (5, 5)),
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.array(7, dtype=">f8"),
    ],
    ids=["transposed", "strided", "fortran", "broadcast", "big-endian", "big-endian scalar"],
)
def test_any_order_of_memory(array: np.ndarray) -> None:
    back = _read(small_body(tensors_of({"a": array, "b": np.uint8(1)})))["a"]
    assert back.shape == array.shape
    assert np.array_equal(back, array)
    assert back.flags.c_contiguous
    assert np.array_equal(_read(small_body((Tensor.of("a", array),)))["a"], array)


@pytest.mark.parametrize(
    ("value", "dtype", "shape"),
    [
        (3, DType.INT64, ()),
        (2.5, DType.FP64, ()),
        (True, DType.BOOL, ()),
        ([[1, 2], [3, 4]], DType.INT64, (2, 2)),
        ([], DType.FP64, (0,)),
        ("text", DType.BYTES, ()),
        ([b"a", b"bc"], DType.BYTES, (2,)),
    ],
)
def test_values_that_are_no_arrays(value: object, dtype: DType, shape: tuple[int, ...]) -> None:
    spec = Tensor.of("x", value).spec
    assert (spec.dtype, spec.shape) == (dtype, shape)


def test_text_is_bytes_on_the_other_side() -> None:
    back = _read(small_body(tensors_of({"t": np.array([["a", "ü"], ["", "long" * 100]], dtype=object)})))["t"]
    assert back.tolist() == [[b"a", "ü".encode()], [b"", b"long" * 100]]


class _Dlpack:
    """What shows itself through DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **words: object) -> object:
        return self._array.__dlpack__(**words)  # type: ignore[arg-type]

    def __dlpack_device__(self) -> object:
        return self._array.__dlpack_device__()


def test_dlpack_is_taken_uncopied() -> None:
    array = np.arange(5, dtype=np.int32)
    tensor = Tensor.of("x", _Dlpack(array))
    assert np.shares_memory(tensor.data, array)


class _OnAnotherDevice:
    def __dlpack__(self, **words: object) -> object:
        raise BufferError("device 2")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.parametrize(
    "value",
    [object(), [1, [2, 3]], {1: 2}, [object()], np.zeros(2, "complex64"), np.array("2020", "M8"), _OnAnotherDevice()],
)
def test_what_cannot_travel_is_named(value: object) -> None:
    with pytest.raises(InvalidArgument):
        Tensor.of("x", value)


def test_inputs_have_names() -> None:
    with pytest.raises(InvalidArgument, match="name"):
        small_body(tensors_of({"": np.zeros(1)}))


def test_request_ids() -> None:
    request = RequestId(0xABC, 7)
    assert str(request) == "0000000000000abc-7"
    assert RequestId(1, 9) < RequestId(1, 10) < RequestId(2, 1)
    assert pickle.loads(pickle.dumps(request)) == request
