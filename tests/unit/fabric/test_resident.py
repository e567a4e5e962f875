"""Residents in descriptors: both directions, and nothing that is garbled."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.dtypes import DType
from fabric.errors import InvalidArgument, ProtocolError
from fabric.layout import Layout, TensorSpec, layout_of, parse_layout
from fabric.memory.lease import tensors
from fabric.resident import ENTRY_BYTES, RESIDENTS_MAX, any_refs, refs_of

NAME = hashlib.sha256(b"x").digest()


def layout(*, carried: bool = False) -> Layout:
    return layout_of(
        (
            TensorSpec.of("at", DType.INT64, (3,)),
            TensorSpec("table", DType.INT32, (1000,), 4000, NAME, referred=not carried),
            TensorSpec.of("x", DType.FP32, (2, 2)),
        )
    )


def test_what_is_referred_to_takes_no_place_in_the_body() -> None:
    lean, whole = layout(), layout(carried=True)
    assert lean.body_bytes == 128
    assert whole.body_bytes == 128 + 4032
    assert lean.residents == whole.residents == 1
    for made in (lean, whole):
        assert parse_layout(made.encoded) == made
        assert any_refs(made.encoded)
    assert not any_refs(layout_of((TensorSpec.of("x", DType.FP32, (1,)),)).encoded)
    assert not any_refs(b"")


def test_a_node_reads_names_and_sizes_without_the_tensors() -> None:
    (ref,) = refs_of(layout().encoded)
    assert (ref.place, ref.carried, ref.nbytes, ref.digest) == (1, False, 4000, NAME)
    (ref,) = refs_of(layout(carried=True).encoded)
    assert ref.carried


def test_a_reply_cannot_refer() -> None:
    with pytest.raises(InvalidArgument, match="resident"):
        tensors(memoryview(bytes(128)), layout())


def test_too_many_are_refused() -> None:
    specs = [TensorSpec(f"t{at}", DType.UINT8, (1,), 1, NAME, referred=True) for at in range(RESIDENTS_MAX + 1)]
    with pytest.raises(InvalidArgument, match="residents"):
        layout_of(tuple(specs))
    assert parse_layout(layout_of(tuple(specs[:-1])).encoded).residents == RESIDENTS_MAX


@pytest.mark.parametrize(
    ("at", "value"),
    [(2, 2), (2, 200), (-ENTRY_BYTES, 0), (-ENTRY_BYTES, 2), (-ENTRY_BYTES + 2, 7), (-ENTRY_BYTES + 8, 1)],
    ids=["count", "count too large", "place", "other place", "kind", "bytes"],
)
def test_a_garbled_entry_is_refused(at: int, value: int) -> None:
    damaged = bytearray(layout().encoded)
    damaged[at] = value
    with pytest.raises(ProtocolError):
        parse_layout(bytes(damaged))


@given(st.binary(max_size=200))
def test_noise_is_refused_or_none(noise: bytes) -> None:
    try:
        refs = refs_of(noise)
    except InvalidArgument:
        return
    assert len(refs) * ENTRY_BYTES <= len(noise)
