"""Checks the inputs of a request against what the model declares, before anything is sent.

The node checks again and has the last word; here a wrong name, dtype or shape is told without a round trip, in one
sentence that names the input, what was given and what is wanted. An input that is missing is the node's to judge,
because only the model knows which it can do without. This module never copies. Read `router/staging.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from difflib import get_close_matches
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType
from fabric.errors import InvalidArgument
from fabric.layout import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from discovery.instance import ModelFacts, TensorFacts


def check(facts: ModelFacts, specs: Iterable[TensorSpec]) -> None:
    """Raises InvalidArgument for the first tensor that the model does not take."""
    declared = {wanted.name: wanted for wanted in facts.inputs}
    if not declared:
        return
    for spec in specs:
        wanted = declared.get(spec.name)
        if wanted is None:
            close = get_close_matches(spec.name, declared, n=1) or [", ".join(declared)]
            raise InvalidArgument(f"model {facts.name!r} has no input {spec.name!r}; give {close[0]}")
        if spec.dtype.name != wanted.dtype:
            raise InvalidArgument(
                f"input {spec.name!r} of model {facts.name!r} is {spec.dtype.name}; give {wanted.dtype}"
            )
        if not _fits(spec.shape, wanted.dims):
            raise InvalidArgument(
                f"input {spec.name!r} of model {facts.name!r} has shape {_shape(spec.shape)};"
                f" give {_shape(wanted.dims)}{' (-1: any size)' if -1 in wanted.dims else ''}"
            )


def declared_specs(facts: ModelFacts, rows: Any, dims: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
    """The tensors of a request from the model's own declaration. `rows` fills a first dimension of -1, `dims` gives
    whole shapes by input name. Raises InvalidArgument where that leaves a size open, or a name is not declared."""
    if not facts.inputs:
        raise InvalidArgument(f"model {facts.name!r} declares no inputs, so none can be prepared; use infer")
    if rows is not None and (not isinstance(rows, int | np.integer) or isinstance(rows, bool) or rows < 0):
        raise InvalidArgument(f"rows is {rows!r}; give a whole number, at least 0")
    unknown = [name for name in dims if name not in {wanted.name for wanted in facts.inputs}]
    if unknown:
        raise InvalidArgument(f"model {facts.name!r} has no input {unknown[0]!r}; give dims for its own inputs")
    count = None if rows is None else int(rows)
    specs = tuple(_declared_spec(facts.name, wanted, count, dims.get(wanted.name)) for wanted in facts.inputs)
    check(facts, specs)
    return specs


def _declared_spec(model: str, wanted: TensorFacts, rows: int | None, given: Any) -> TensorSpec:
    if wanted.dtype == DType.BYTES.name:
        raise InvalidArgument(f"input {wanted.name!r} of model {model!r} is BYTES and cannot be prepared; use infer")
    shape = wanted.dims if given is None else _whole(wanted.name, given)
    if shape and shape[0] == -1 and rows is not None:
        shape = (rows, *shape[1:])
    if any(dim < 0 for dim in shape):
        how = f"rows=..., or {wanted.name}=(...)" if shape[0] == -1 and -1 not in shape[1:] else f"{wanted.name}=(...)"
        raise InvalidArgument(f"input {wanted.name!r} of model {model!r} has shape {_shape(shape)}; give {how}")
    return TensorSpec.of(wanted.name, DType[wanted.dtype], shape)


def _whole(name: str, given: Any) -> tuple[int, ...]:
    try:
        return tuple([index(dim) for dim in given])
    except TypeError:
        raise InvalidArgument(f"the shape of input {name!r} is {given!r}; give a tuple of whole numbers") from None


def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
    return len(shape) == len(dims) and all(wanted in (-1, given) for given, wanted in zip(shape, dims, strict=True))


def _shape(dims: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, dims))}]"
