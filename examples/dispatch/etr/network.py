"""The two networks as lists of named parameters, so that trainer, ONNX graph and NumPy reference cannot drift apart.

A parameter's name here is its name in training, its initializer's name in the ONNX file and its key in the reference.
This module computes nothing and draws nothing at random. Next: `graph.py`, which wires the parameters together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.etr.features import DENSE, ID_BUCKETS, STOP_GRID_BUCKETS, STOPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Array = NDArray[Any]

EMBEDDING = 16  # width of one field's embedding, and of the factorization machine's second order
DENSE_FIELDS = 2  # the dense features enter the factorization machine as this many learned fields
ENCODER_WIDTH = 64
ENCODER_HEADS = 4
ENCODER_LAYERS = 2
ENCODER_HIDDEN = 256
STOP_TYPES = 4  # one more than there are: room for a kind of stop to come
NORMALISED_MAX = 10.0  # normalised inputs saturate here, so any finite input gives a finite answer
MASK_ADDEND = -1e9  # added to the attention score of a padded stop: its weight becomes exactly 0 in fp32

MINI_ITEMS = 27
MINI_WEEKDAYS = 7
MINI_SLOTS = 7 * 48
MINI_DENSE = 2 + MINI_ITEMS  # decimal hour, miles, then the count of each menu item


class WrongWeights(ValueError):
    """A set of weights does not fit the network it was given for; train again or take the shipped file."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One named array. `trained` is false for what is computed from data (means, scales) or fixed (bucket counts)."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    trained: bool = True


@dataclass(frozen=True, slots=True)
class NetSpec:
    """A network's name and its parameters, in the order in which they stand in the ONNX file."""

    name: str
    parameters: tuple[Parameter, ...]

    @property
    def trained_count(self) -> int:
        """How many numbers training may change."""
        return sum(int(np.prod(p.shape)) for p in self.parameters if p.trained)


@dataclass(frozen=True, slots=True)
class Weights:
    """The parameters of one network, checked against its spec when made by `of`."""

    spec: NetSpec
    arrays: tuple[Array, ...]

    @classmethod
    def of(cls, spec: NetSpec, named: Mapping[str, Array] | Iterable[tuple[str, Array]]) -> Weights:
        """Take arrays by name; raises WrongWeights where one is missing, of another shape, or not finite."""
        given = dict(named)
        arrays = []
        for parameter in spec.parameters:
            if parameter.name not in given:
                raise WrongWeights(f"{spec.name} lacks its parameter {parameter.name}: train it again.")
            array = np.ascontiguousarray(given[parameter.name], dtype=parameter.dtype)
            if array.shape != parameter.shape or not np.isfinite(array).all():
                raise WrongWeights(
                    f"{spec.name} needs {parameter.name} finite and of shape {parameter.shape}, not {array.shape}: "
                    "train it again."
                )
            arrays.append(array)
        return cls(spec, tuple(arrays))

    def __getitem__(self, name: str) -> Array:
        for parameter, array in zip(self.spec.parameters, self.arrays, strict=True):
            if parameter.name == name:
                return array
        raise KeyError(name)


def _dense_layer(name: str, width_in: int, width_out: int) -> tuple[Parameter, Parameter]:
    return Parameter(f"{name}.w", (width_in, width_out)), Parameter(f"{name}.b", (width_out,))


def _layer_norm(name: str) -> tuple[Parameter, Parameter]:
    return Parameter(f"{name}.g", (ENCODER_WIDTH,)), Parameter(f"{name}.b", (ENCODER_WIDTH,))


def _normaliser(name: str, width: int) -> tuple[Parameter, Parameter]:
    return (
        Parameter(f"norm.{name}.mean", (width,), trained=False),
        Parameter(f"norm.{name}.scale", (width,), trained=False),
    )


def _fields(buckets: tuple[int, ...]) -> tuple[Parameter, ...]:
    """One table holds all id fields, one after the other: a single Gather serves them."""
    rows = sum(buckets)
    return (
        Parameter("ids.buckets", (len(buckets),), "int32", trained=False),
        Parameter("ids.offsets", (len(buckets),), "int32", trained=False),
        Parameter("ids.embedding", (rows, EMBEDDING)),
        Parameter("ids.linear", (rows, 1)),
    )


def _encoder_layer(index: int) -> tuple[Parameter, ...]:
    name = f"encoder.{index}"
    return (
        *_layer_norm(f"{name}.norm1"),
        *_dense_layer(f"{name}.qkv", ENCODER_WIDTH, 3 * ENCODER_WIDTH),
        *_dense_layer(f"{name}.out", ENCODER_WIDTH, ENCODER_WIDTH),
        *_layer_norm(f"{name}.norm2"),
        *_dense_layer(f"{name}.up", ENCODER_WIDTH, ENCODER_HIDDEN),
        *_dense_layer(f"{name}.down", ENCODER_HIDDEN, ENCODER_WIDTH),
    )


def _base() -> NetSpec:
    fields = len(ID_BUCKETS) + DENSE_FIELDS
    return NetSpec(
        "etr",
        (
            *_normaliser("dense", len(DENSE)),
            *_normaliser("stops", len(STOPS)),
            *_fields(ID_BUCKETS),
            *_dense_layer("dense.fields", len(DENSE), DENSE_FIELDS * EMBEDDING),
            *_dense_layer("dense.linear", len(DENSE), 1),
            *_dense_layer("deep.0", fields * EMBEDDING, 256),
            *_dense_layer("deep.1", 256, 128),
            *_dense_layer("deep.2", 128, 64),
            Parameter("stop.grid", (STOP_GRID_BUCKETS, EMBEDDING)),
            Parameter("stop.type", (STOP_TYPES, ENCODER_WIDTH)),
            *_dense_layer("stop.in", len(STOPS) + EMBEDDING, ENCODER_WIDTH),
            *(p for index in range(ENCODER_LAYERS) for p in _encoder_layer(index)),
            *_layer_norm("encoder.norm"),
            *_dense_layer("head.stop", ENCODER_WIDTH, 64),
            Parameter("head.pair.w", (64, 64)),
            *_dense_layer("head.out", 64, 1),
            # The plan's own step goes past the encoder: the network learns where the plan is wrong, not the plan.
            Parameter("head.skip.w", (len(STOPS), 1)),
        ),
    )


def _mini() -> NetSpec:
    fields = 2 + MINI_DENSE
    return NetSpec(
        "etr_mini",
        (
            *_normaliser("dense", MINI_DENSE),
            *_fields((MINI_WEEKDAYS, MINI_SLOTS)),
            Parameter("dense.embedding", (MINI_DENSE, EMBEDDING)),
            *_dense_layer("dense.linear", MINI_DENSE, 1),
            *_dense_layer("deep.0", fields * EMBEDDING, 128),
            *_dense_layer("deep.1", 128, 64),
            *_dense_layer("deep.2", 64, 1),
        ),
    )


BASE = _base()
MINI = _mini()
