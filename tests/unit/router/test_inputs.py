"""Wrong inputs are told in one sentence before anything is sent; right ones are copied once, to where they are sent."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from discovery.instance import ModelFacts, TensorFacts
from fabric.dtypes import bytes_decode
from fabric.errors import InvalidArgument, ResourceExhausted
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease, tensors
from router.inputs import declared_specs
from router.staging import Staging
from tests.unit.router.fleet import facts

FACTS = facts(
    "plan", TensorFacts("dense", "FP32", (-1, 4)), TensorFacts("n", "INT32", (1,)), TensorFacts("tag", "BYTES", (-1,))
)
SIZED = facts("plan", *FACTS.inputs[:2])


def blamed(error: ResourceExhausted) -> ResourceExhausted:
    return ResourceExhausted(f"{error}; replies of plan hold 4096 bytes")


def staging(arena: Arena | None = None) -> Staging:
    return Staging(Arena.create(1 << 23), lambda: arena, blamed)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"dens": np.zeros((2, 4), np.float32)}, "model 'plan' has no input 'dens'; give dense"),
        ({"zzz": np.zeros(1)}, "model 'plan' has no input 'zzz'; give dense, n, tag"),
        ({"dense": np.zeros((2, 4))}, "input 'dense' of model 'plan' is FP64; give FP32"),
        ({"dense": np.zeros((2, 5), np.float32)}, r"has shape \[2, 5\]; give \[-1, 4\] \(-1: any size\)"),
        ({"dense": np.zeros(4, np.float32)}, r"has shape \[4\]; give \[-1, 4\]"),
        ({"n": np.zeros(2, np.int32)}, r"has shape \[2\]; give \[1\]$"),
        ({"tag": np.zeros(2, np.int32)}, "is INT32; give BYTES"),
        ({"n": [1.5]}, "is FP64; give INT32"),
        ({"n": object()}, "holds object objects"),
        ({"n": np.zeros(1, np.complex64)}, "complex64 cannot travel"),
        ({"n": [[1], [1, 2]]}, "input 'n' is no array"),
    ],
)
def test_a_wrong_input_is_refused(inputs: dict[str, object], sentence: str) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        staging().stage(FACTS, inputs)


def test_facts_that_changed_are_checked_again() -> None:
    stage, inputs = staging(), {"dense": np.zeros((2, 4), np.float32)}
    stage.stage(FACTS, inputs)
    other = facts("plan", TensorFacts("dense", "FP32", (-1, 8)))
    with pytest.raises(InvalidArgument, match="shape"):
        stage.stage(other, inputs)


@pytest.mark.parametrize("rows", [0, 1, 3, 4000, 40_000])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_byte_lands_small_or_leased_first_time_or_planned(rows: int, order: str) -> None:
    stage, rng = staging(), np.random.default_rng(1)
    for _ in range(2):
        dense = np.asarray(rng.random((rows, 4), np.float32), order=order)  # type: ignore[call-overload]
        n = np.array([rows], np.int32)
        body = stage.stage(FACTS, {"dense": dense, "n": n})
        assert isinstance(body.memory, bytes) == (body.layout.body_bytes < 64 * 1024)
        got = tensors(body.view(), body.layout)
        np.testing.assert_array_equal(got[0], dense)
        np.testing.assert_array_equal(got[1], n)
        assert len(body.view()) == body.layout.body_bytes


def test_lists_strings_and_single_arrays_travel() -> None:
    body = staging().stage(FACTS, {"n": np.array([7], np.int32)})
    assert len(body.view()) == body.layout.body_bytes == 64
    body = staging().stage(FACTS, {"tag": ["a", b"bc"]})
    (spec,) = body.layout.specs
    assert bytes_decode(bytes(body.view()[: spec.nbytes]), 2).tolist() == [b"a", b"bc"]
    big_endian = np.array([7], ">i4")
    body = staging().stage(FACTS, {"n": big_endian})
    assert tensors(body.view(), body.layout)[0][0] == 7


def test_a_large_body_lies_in_the_arena_of_the_local_node() -> None:
    arena = Arena.create(1 << 20)
    body = staging(arena).stage(FACTS, {"dense": np.zeros((10_000, 4), np.float32)})
    assert isinstance(body.memory, Lease)
    assert body.memory.arena is arena
    del body
    gc.collect()
    assert arena.lent_bytes() == 0


def test_an_arena_that_is_full_names_who_holds_it() -> None:
    arena = Arena.create(1 << 18)
    stage, inputs = staging(arena), {"dense": np.zeros((10_000, 4), np.float32)}
    held = stage.stage(FACTS, inputs)
    with pytest.raises(ResourceExhausted, match="replies of plan hold 4096 bytes"):
        stage.stage(FACTS, inputs)
    del held
    stage.stage(FACTS, inputs)


def test_declared_inputs_take_rows_and_whole_shapes() -> None:
    specs = declared_specs(SIZED, 512, {})
    assert [(spec.name, spec.shape, spec.nbytes) for spec in specs] == [("dense", (512, 4), 8192), ("n", (1,), 4)]
    assert declared_specs(SIZED, None, {"dense": (3, 4)})[0].shape == (3, 4)


@pytest.mark.parametrize(
    ("declared", "rows", "dims", "sentence"),
    [
        (SIZED, None, {}, r"has shape \[-1, 4\]; give rows=..., or dense="),
        (SIZED, 2, {"dense": (3, 5)}, r"has shape \[3, 5\]; give \[-1, 4\]"),
        (SIZED, -3, {}, "rows is -3; give a whole number, at least 0"),
        (SIZED, 2.5, {}, "rows is 2.5; give a whole number"),
        (SIZED, None, {"dense": 3}, "the shape of input 'dense' is 3; give a tuple of whole numbers"),
        (SIZED, None, {"dense": (3.5, 4)}, "give a tuple of whole numbers"),
        (SIZED, 2, {"danse": (3, 4)}, "no input 'danse'"),
        (FACTS, 2, {}, "'tag' of model 'plan' is BYTES"),
        (facts("m"), 2, {}, "declares no inputs"),
    ],
)
def test_what_cannot_be_prepared_says_what_to_give(
    declared: ModelFacts, rows: object, dims: dict[str, object], sentence: str
) -> None:
    with pytest.raises(InvalidArgument, match=sentence):
        declared_specs(declared, rows, dims)
