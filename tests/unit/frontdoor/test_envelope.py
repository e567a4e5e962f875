"""Tensors are cut out of a message, and put behind one, without protobuf noticing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.errors import InvalidArgument
from frontdoor.envelope import joined, split, wrapped
from frontdoor.messages import message

Request, Response = message("ModelInferRequest"), message("ModelInferResponse")
BLOBS = st.lists(st.binary(max_size=300), max_size=5)


@given(BLOBS, st.text(max_size=40))
def test_what_is_cut_out_is_what_protobuf_would_read(blobs: list[bytes], name: str) -> None:
    sent = Request(model_name=name, id="i", raw_input_contents=blobs)
    sent.inputs.add(name="x", datatype="FP32", shape=[1, -1])
    head, found = split(sent.SerializeToString())
    assert [bytes(each) for each in found] == blobs
    rest = Request.FromString(head)
    assert not rest.raw_input_contents
    rest.raw_input_contents.extend(blobs)
    assert rest == sent


@given(BLOBS)
def test_what_is_appended_is_what_protobuf_reads(blobs: list[bytes]) -> None:
    head = Response(model_name="m", id="i")
    found = Response.FromString(joined(head.SerializeToString(), [memoryview(blob) for blob in blobs]))
    assert list(found.raw_output_contents) == blobs
    assert found.model_name == "m"


def test_fields_may_stand_in_any_order() -> None:
    first, second = Request(raw_input_contents=[b"a"]), Request(model_name="m", raw_input_contents=[b"", b"b"])
    head, found = split(first.SerializeToString() + second.SerializeToString())
    assert [bytes(each) for each in found] == [b"a", b"", b"b"]
    assert Request.FromString(head) == Request(model_name="m")


def test_values_are_not_copied() -> None:
    raw = Request(raw_input_contents=[bytes(1000)]).SerializeToString()
    _, (view,) = split(raw)
    assert view.obj is raw


def test_fields_of_every_kind_are_stepped_over() -> None:
    # Unknown to the message: a varint, 64 bits, 32 bits, and bytes.
    raw = b"\xa0\x06\x96\x01" + b"\xa1\x06" + bytes(8) + b"\xa5\x06" + bytes(4) + b"\xa2\x06\x02hi"
    head, found = split(raw + b"\x3a\x01a")
    assert (head, [bytes(each) for each in found]) == (raw, [b"a"])


@pytest.mark.parametrize(
    "raw",
    [b"\x3a", b"\x3a\x05abc", b"\x0a\xff", b"\x80" * 11, b"\x09\x00", b"\x0d\x00", b"\x0b", b"\x0c", b"\x0f", b"\x08"],
)
def test_what_is_cut_or_garbled_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidArgument):
        split(raw)


@given(st.binary(max_size=200))
def test_garbage_never_does_more_than_be_refused(raw: bytes) -> None:
    try:
        head, found = split(raw)
    except InvalidArgument:
        return
    assert len(head) + sum(map(len, found)) <= len(raw)


def test_a_message_within_a_message() -> None:
    stream = message("ModelStreamInferResponse")
    inner = Response(model_name="m" * 200)
    assert stream.FromString(wrapped(2, inner.SerializeToString())).infer_response == inner
