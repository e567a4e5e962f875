"""Bodies of HTTP: JSON alone, with binary tensors behind it, bare; and responses of each kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import TensorSpec
from frontdoor.engine import Model, Tensor
from frontdoor.http_infer import read_bare, read_request, write_response
from frontdoor.values import Done, Output, Place, Wanted


def body(facts: Any, behind: bytes = b"") -> tuple[bytes, str]:
    head = json.dumps(facts).encode()
    return head + behind, str(len(head))


def binary(name: str, size: int, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": "UINT8", "shape": shape, "parameters": {"binary_data_size": size}}


def test_binary_tensors_follow_in_order() -> None:
    raw, length = body({"id": "i", "inputs": [binary("a", 2, [2]), binary("b", 0, [0]), binary("c", 1, [1])]}, b"xyz")
    asked = read_request("m", "1", raw, length)
    assert (asked.model, asked.version, asked.id) == ("m", "1", "i")
    assert [bytes(given.data) for given in asked.inputs if isinstance(given.data, memoryview)] == [b"xy", b"", b"z"]


def test_outputs_take_their_form_from_the_request() -> None:
    outputs = [{"name": "y"}, {"name": "z", "parameters": {"binary_data": False, "classification": 3}}]
    raw, length = body({"inputs": [], "outputs": outputs, "parameters": {"binary_data_output": True}})
    assert read_request("m", "", raw, length).outputs == (Wanted("y", binary=True), Wanted("z", classes=3))


@pytest.mark.parametrize(
    ("facts", "behind", "length"),
    [
        ({"inputs": [binary("a", 2, [2])]}, b"x", None),
        ({"inputs": [binary("a", 2, [2])]}, b"xyz", None),
        ({"inputs": [binary("a", -2, [2])]}, b"", None),
        ({"inputs": []}, b"", "999"),
        ({"inputs": []}, b"", "-1"),
        ({"inputs": []}, b"", "²"),
        ({"inputs": [{"name": "a", "datatype": "UINT8", "shape": [1]}]}, b"", None),
        ({"inputs": [{**binary("a", 1, [1]), "data": [1]}]}, b"x", None),
        ({"inputs": [{"name": 3, "datatype": "UINT8", "shape": [1], "data": [1]}]}, b"", None),
        ({"inputs": [], "parameters": {"a": []}}, b"", None),
        ({"inputs": [], "id": 3}, b"", None),
    ],
)
def test_bodies_that_do_not_add_up_are_refused(facts: Any, behind: bytes, length: str | None) -> None:
    raw, known = body(facts, behind)
    with pytest.raises(InvalidArgument):
        read_request("m", "", raw, length or known)


def test_data_nested_without_end_is_refused() -> None:
    raw = (
        b'{"inputs": [{"name": "a", "datatype": "UINT8", "shape": [1], "data": ' + b"[" * 99 + b"1" + b"]" * 99 + b"}]}"
    )
    with pytest.raises(InvalidArgument, match="nested"):
        read_request("m", "", raw, None)
    with pytest.raises(InvalidArgument):
        read_request("m", "", b'{"inputs": ' + b"[" * 100_000, None)


def test_a_bare_body_takes_its_shape_from_the_model() -> None:
    def shape(dtype: str, dims: tuple[int, ...], raw: bytes, batch: int = 0) -> tuple[int, ...]:
        model = Model("m", "1", "READY", max_batch_size=batch, inputs=(Tensor("x", dtype, dims),))
        return read_bare(model, "", raw).inputs[0].shape

    assert shape("FP32", (-1,), bytes(12)) == (3,)
    assert shape("FP32", (3, -1), bytes(24)) == (3, 2)
    assert shape("FP32", (-1, 2), bytes(8), batch=4) == (1, 2)
    assert shape("BYTES", (1,), b"hello") == (1,)
    for dims, raw in (((-1, -1), bytes(8)), ((4,), bytes(12)), ((-1,), bytes(3))):
        with pytest.raises(InvalidArgument):
            shape("FP32", dims, raw)


def test_responses_are_json_with_what_is_binary_behind() -> None:
    def output(name: str, data: bytes | None, *, binary: bool, place: Place | None = None) -> Output:
        spec = TensorSpec.of(name, DType.UINT8, (2,))
        return Output(spec, memoryview(data) if data is not None else None, place, Wanted(name, place, binary=binary))

    outputs = (
        output("a", b"\x01\x02", binary=True),
        output("b", b"\x03\x04", binary=False),
        output("c", None, binary=False, place=Place("r", 8, 2)),
        output("d", b"\x05\x06", binary=True),
    )
    raw, length = write_response(Done("m", "1", "i", outputs, lambda: None))
    assert length is not None
    facts = json.loads(raw[:length])
    assert raw[length:] == b"\x01\x02\x05\x06"
    assert (facts["model_name"], facts["id"]) == ("m", "i")
    assert [each.get("data") for each in facts["outputs"]] == [None, [3, 4], None, None]
    assert "parameters" not in facts["outputs"][2]
    raw, length = write_response(Done("m", "1", "", outputs[1:2], lambda: None))
    assert length is None
    assert "id" not in json.loads(raw)
