"""Descriptors say the same to both ends, and bytes that are none are refused before anybody uses a number of theirs."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.dtypes import DType
from fabric.errors import InvalidArgument, ProtocolError
from fabric.layout import ALIGN_BYTES, EMPTY, NDIM_MAX, TENSORS_MAX, Layout, TensorSpec, layout_of, parse_layout

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)


@st.composite
def specs(draw: st.DrawFn) -> TensorSpec:
    dtype = draw(st.sampled_from(DType))
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=5)))
    serialised = draw(st.integers(0, 5000)) if dtype is DType.BYTES else None
    return TensorSpec.of(draw(names), dtype, shape, serialised)


layouts = st.lists(specs(), max_size=12, unique_by=lambda spec: spec.name).map(lambda found: layout_of(tuple(found)))


@given(layouts)
def test_round_trip(layout: Layout) -> None:
    assert parse_layout(layout.encoded) == layout


@given(layouts)
def test_tensors_are_aligned_and_apart(layout: Layout) -> None:
    end = 0
    for spec, offset in zip(layout.specs, layout.offsets, strict=True):
        assert offset % ALIGN_BYTES == 0
        assert offset >= end
        end = offset + spec.nbytes
    assert end <= layout.body_bytes < end + ALIGN_BYTES


@given(layouts, st.data())
def test_damage_is_found_or_harmless(layout: Layout, data: st.DataObject) -> None:
    """Whatever bytes come: ProtocolError, or a layout in which every tensor lies inside of the body."""
    raw = bytearray(layout.encoded)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for damaged in (bytes(raw), bytes(raw[:cut])):
        try:
            parsed = parse_layout(damaged)
        except ProtocolError:
            continue
        for spec, offset in zip(parsed.specs, parsed.offsets, strict=True):
            assert 0 <= offset <= parsed.body_bytes - spec.nbytes


@given(st.binary(max_size=400))
def test_noise_is_refused_in_our_own_words(noise: bytes) -> None:
    try:
        parse_layout(noise)
    except ProtocolError:
        return
    assert parse_layout(noise).encoded == noise


def test_nothing_is_a_layout_too() -> None:
    assert layout_of(()) == EMPTY
    assert parse_layout(EMPTY.encoded) == EMPTY


@pytest.mark.parametrize(
    "given_specs",
    [
        (TensorSpec.of("", DType.FP32, (1,)),),
        (TensorSpec.of("n" * 256, DType.FP32, (1,)),),
        (TensorSpec.of("a", DType.FP32, (1,)), TensorSpec.of("a", DType.FP32, (2,))),
        (TensorSpec.of("a", DType.FP32, (1,) * (NDIM_MAX + 1)),),
        (TensorSpec.of("a", DType.FP32, (1 << 50,)),),
        tuple(TensorSpec.of(str(number), DType.FP32, (1,)) for number in range(TENSORS_MAX + 1)),
    ],
    ids=["no name", "long name", "twice", "deep", "huge", "many"],
)
def test_what_cannot_be_laid_out(given_specs: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(InvalidArgument):
        layout_of(given_specs)


@pytest.mark.parametrize("shape", [(-1,), (1 << 62, 4), (1 << 62, 1 << 62)])
def test_sizes_that_overflow_are_refused(shape: tuple[int, ...]) -> None:
    raw = struct.pack("<HxxQ", 1, 64) + struct.pack("<BBBxxxxxQQ", 1, DType.FP32, len(shape), 0, 0)
    raw += struct.pack(f"<{len(shape)}q", *shape) + b"a"
    with pytest.raises(ProtocolError):
        parse_layout(raw)
