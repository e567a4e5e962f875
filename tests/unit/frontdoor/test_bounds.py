"""What is read of a message is bounded before it is read: no small message may take everybody's time."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from frontdoor.envelope import FIELDS_MAX, split
from frontdoor.failures import SENTENCE_BYTES_MAX, Refusal, Status, sentence
from frontdoor.grpc_infer import PARAMETERS_MAX
from frontdoor.grpc_infer import read_request as read_grpc
from frontdoor.http_infer import read_request as read_http
from frontdoor.messages import message
from frontdoor.typed import TEXT_BYTES_MAX, raw_of

if TYPE_CHECKING:
    from collections.abc import Callable

Request = message("ModelInferRequest")


def typed(*shape: int, **fields: Any) -> Any:
    request = Request(model_name="m")
    request.inputs.add(name="x", datatype="FP32", shape=shape, **fields).contents.fp32_contents.append(1.0)
    return request


def crowded(make: Callable[[Any], object], count: int) -> Any:
    request = typed(1)
    for _ in range(count):
        make(request)
    return request


def many_parameters() -> Any:
    request = typed(1)
    for number in range(PARAMETERS_MAX + 1):
        request.inputs[0].parameters[f"p{number}"].int64_param = number
    return request


GRPC = {
    "300,000 sizes of 2^62, whose product takes minutes": lambda: typed(*[2**62] * 300_000),
    "33 sizes": lambda: typed(*[1] * 33),
    "raw tensors without inputs": lambda: crowded(lambda r: r.raw_input_contents.append(b""), FIELDS_MAX),
    "outputs": lambda: crowded(lambda r: r.outputs.add(name="y"), 257),
    "inputs": lambda: crowded(lambda r: r.inputs.add(name="x", datatype="FP32"), 257),
    "parameters of a tensor": many_parameters,
}


@pytest.mark.parametrize("what", GRPC)
def test_a_message_of_too_much_is_refused_in_no_time(what: str) -> None:
    raw = GRPC[what]().SerializeToString()
    began = time.monotonic()
    with pytest.raises(InvalidArgument):
        read_grpc(raw)
    assert time.monotonic() - began < 5.0  # without the bound: minutes for the first


def test_a_field_too_many_is_not_read() -> None:
    assert len(split(b"\x3a\x00" * FIELDS_MAX)[1]) == FIELDS_MAX
    with pytest.raises(InvalidArgument, match="fields"):
        split(b"\x3a\x00" * (FIELDS_MAX + 1))


def test_much_text_is_refused_and_much_raw_is_not() -> None:
    raw = Request(model_name="m", id="i" * TEXT_BYTES_MAX).SerializeToString()
    with pytest.raises(Refusal) as raised:
        read_grpc(raw)
    assert raised.value.status is Status.RESOURCE_EXHAUSTED
    request = Request(model_name="m", raw_input_contents=[bytes(TEXT_BYTES_MAX + 1)])
    request.inputs.add(name="x", datatype="UINT8", shape=[TEXT_BYTES_MAX + 1])
    assert read_grpc(request.SerializeToString()).inputs[0].data.nbytes == TEXT_BYTES_MAX + 1
    with pytest.raises(Refusal):
        read_http("m", "", b" " * (TEXT_BYTES_MAX + 1), None)


NINES = int("9" * 4000)
HTTP: dict[str, dict[str, Any]] = {
    "a size of 4000 digits": {"shape": [NINES, NINES], "data": [1]},
    "that size, binary": {"shape": [NINES, 0], "parameters": {"binary_data_size": 0}},
    "a size over 63 bits": {"shape": [0, 2**63], "parameters": {"binary_data_size": 0}},
    "a size over 63 bits of BYTES": {"datatype": "BYTES", "shape": [2**63], "parameters": {"binary_data_size": 0}},
    "40 sizes": {"shape": [1] * 40, "data": [1]},
    "half a surrogate pair": {"datatype": "BYTES", "shape": [1], "data": ["\ud800"]},
    "null for a number": {"shape": [1], "data": [None]},
    "a fraction for a whole number": {"datatype": "INT64", "shape": [1], "data": [1.5]},
    "true for a number": {"datatype": "INT64", "shape": [1], "data": [True]},
    "a number that no float holds": {"shape": [1], "data": [10**400]},
}


@pytest.mark.parametrize("what", HTTP)
def test_json_that_is_no_tensor_is_refused(what: str) -> None:
    body = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", **HTTP[what]}]}).encode()
    with pytest.raises(InvalidArgument):
        read_http("m", "", body, None)


@pytest.mark.parametrize(
    "request_", [{"inputs": [{}] * 257}, {"outputs": [{}] * 257}, {"parameters": {f"p{n}": 1 for n in range(1025)}}]
)
def test_json_of_too_much_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="at most"):
        read_http("m", "", json.dumps(request_).encode(), None)


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1e3", "\u0661", ""])
def test_a_length_that_is_none_is_refused(length: str) -> None:
    with pytest.raises(InvalidArgument):
        read_http("m", "", b"{}", length)


def test_whole_numbers_are_floats_too_and_0_and_1_are_booleans() -> None:
    assert bytes(raw_of("x", DType.FP64, [2], [1, 1.5])) == bytes(6) + b"\xf0\x3f" + bytes(6) + b"\xf8\x3f"
    assert bytes(raw_of("x", DType.BOOL, [3], [True, 0, 1])) == b"\1\0\1"


def test_a_sentence_fits_trailing_metadata() -> None:
    for text in ("x" * 100_000, "\u4f60" * 100_000, "\ud800" * 100_000):
        told = sentence(InvalidArgument(text))
        assert len(told.encode()) <= SENTENCE_BYTES_MAX + 4
        assert told.endswith("…")
    assert sentence(InvalidArgument("short")) == "short"
