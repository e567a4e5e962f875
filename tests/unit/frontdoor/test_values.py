"""Parameters, places, typed values, classes, statuses: what a request may say, and how errors read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric import errors
from fabric.dtypes import DType
from fabric.errors import Fate, InvalidArgument, OverspillError
from fabric.layout import TensorSpec
from frontdoor.classes import classified
from frontdoor.failures import Refusal, Status, reason_of, status_of
from frontdoor.typed import FIELDS, dtype_named, raw_of, values_of
from frontdoor.values import Options, Place, options_of, place_of


def spelled(dtype: DType, count: int, raw: memoryview) -> list[Any]:
    return [value for part in values_of(dtype, count, raw) for value in part]


def test_options_are_read() -> None:
    found = options_of(
        (
            ("priority", 3), ("timeout", 500), ("sequence_id", "s"), ("sequence_start", True), ("mine", 1.5),
            ("triton_enable_empty_final_response", True), ("binary_data_output", True),
        )
    )  # fmt: skip
    assert found == Options(3, 500, empty_final=True, binary_output=True)
    assert options_of((("priority", 2**40),)).priority == 255


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "1"), ("priority", True), ("priority", -1), ("timeout", 1.5), ("sequence_id", 1.5),
        ("sequence_start", 1), ("triton_anything", 1), ("binary_data_output", "yes"),
    ],
)  # fmt: skip
def test_options_of_the_wrong_kind_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=name):
        options_of(((name, value),))


def test_places_are_read() -> None:
    assert place_of("x", (("mine", 1),)) is None
    size = ("shared_memory_byte_size", 8)
    assert place_of("x", (("shared_memory_region", "r"), size)) == Place("r", 0, 8)
    assert place_of("x", (("shared_memory_region", "r"), size, ("shared_memory_offset", 4))) == Place("r", 4, 8)


@given(st.sampled_from([dtype for dtype in FIELDS if dtype is not DType.BYTES]), st.data())
def test_typed_values_are_raw_bytes_and_back(dtype: DType, data: st.DataObject) -> None:
    numpy = dtype.numpy
    if numpy.kind == "b":
        element: st.SearchStrategy[Any] = st.booleans()
    elif numpy.kind == "f":
        element = st.floats(allow_nan=False, allow_infinity=False, width=32 if numpy.itemsize == 4 else 64)
    else:
        limits = np.iinfo(numpy)
        element = st.integers(int(limits.min), int(limits.max))
    values = data.draw(st.lists(element, max_size=8))
    assert spelled(dtype, len(values), raw_of("x", dtype, [len(values)], values)) == values


@pytest.mark.parametrize(
    ("dtype", "shape", "values"),
    [
        (DType.FP16, [1], [1.0]), (DType.BF16, [1], [1.0]), (DType.INT8, [1], [128]), (DType.UINT8, [1], [-1]),
        (DType.UINT16, [1], [65536]), (DType.INT32, [2], [1]), (DType.INT32, [-1], []), (DType.FP32, [1], [{}]),
        (DType.BYTES, [1], [3]), (DType.FP32, [1], [1e39]),
    ],
)  # fmt: skip
def test_typed_values_that_do_not_fit_are_refused(dtype: DType, shape: list[int], values: list[Any]) -> None:
    with pytest.raises(InvalidArgument):
        raw_of("x", dtype, shape, values)


def test_json_cannot_hold_everything() -> None:
    for dtype, raw in ((DType.FP32, np.array([np.nan], np.float32).tobytes()), (DType.FP16, b"\0\0")):
        with pytest.raises(InvalidArgument, match="binary_data"):
            spelled(dtype, 1, memoryview(raw))
    with pytest.raises(InvalidArgument, match="binary_data"):
        spelled(DType.BYTES, 1, memoryview(b"\1\0\0\0\xff"))
    with pytest.raises(InvalidArgument, match="FLOAT"):
        dtype_named("x", "FLOAT")


def test_classes_of_each_row() -> None:
    array = np.array([[1, 3, 2], [5, 5, 4]], np.float32)
    spec = TensorSpec.of("y", DType.FP32, (2, 3))
    told, raw = classified(spec, memoryview(array.tobytes()), 2, batched=True)
    assert (told.dtype, told.shape) == (DType.BYTES, (2, 2))
    assert spelled(DType.BYTES, 4, raw) == ["3.000000:1", "2.000000:2", "5.000000:0", "5.000000:1"]
    told, _ = classified(spec, memoryview(array.tobytes()), 99, batched=False)
    assert told.shape == (6,)
    empty = TensorSpec.of("y", DType.FP32, (0, 3))
    assert classified(empty, memoryview(b""), 2, batched=True)[0].shape == (0, 2)


def every_error() -> list[type[OverspillError]]:
    found, todo = [], [OverspillError]
    while todo:
        kind = todo.pop()
        if kind.__module__ == errors.__name__:  # those of other modules never leave them, or are made by them alone
            found.append(kind)
        todo += kind.__subclasses__()
    return found


def test_every_error_has_a_status_and_a_reason() -> None:
    for kind in every_error():
        assert isinstance(status_of(kind("x")), Status)
        assert reason_of(kind("x")) in {"REJECTED", "CANCELED", "BACKEND", "OTHER"}


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidArgument("x"), "INVALID_ARGUMENT"), (errors.UnknownModel("x"), "NOT_FOUND"),
        (errors.PoisonRequest("x"), "INVALID_ARGUMENT"), (errors.QueueFull("x"), "UNAVAILABLE"),
        (errors.ExecutorLost("x"), "UNAVAILABLE"), (errors.Draining("x"), "UNAVAILABLE"),
        (errors.ModelBroken("x"), "UNAVAILABLE"), (errors.ModelFailed("x"), "INTERNAL"),
        (errors.Cancelled("x"), "CANCELLED"), (errors.DeadlineExceeded("x"), "DEADLINE_EXCEEDED"),
        (errors.ReplyTooLarge("x"), "RESOURCE_EXHAUSTED"), (errors.ProtocolError("x"), "INTERNAL"),
        (errors.AccessDenied("x"), "PERMISSION_DENIED"), (Refusal(Status.ALREADY_EXISTS, "x"), "ALREADY_EXISTS"),
    ],
)  # fmt: skip
def test_errors_have_tritons_statuses(error: OverspillError, status: str) -> None:
    assert status_of(error).name == status


def test_grpcs_numbers_are_grpcs() -> None:
    import grpc

    known = {code.name: code.value[0] for code in grpc.StatusCode}
    assert {status.name: status.grpc for status in Status}.items() <= known.items()
    assert Refusal(Status.INTERNAL, "x", Fate.RAN).fate is Fate.RAN
