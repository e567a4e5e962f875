"""Runs a model on its warm-up samples while it is loaded, so that its first callers wait no longer than later ones.

Samples come from `model_warmup`. A network that batches is also run on zeros of each size that its batches should have.
What fails here fails the load. Read `workers/execution.py` next.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType, bytes_decode
from fabric.errors import ModelBroken, OverspillError
from workers.backends.base import Inputs

if TYPE_CHECKING:
    from workers.execution import LoadedModel
    from workers.modelconfig import ModelConfig
    from workers.warmupconfig import Warmup, WarmupInput


def run_samples(model: LoadedModel) -> tuple[int, ...]:
    """Runs every sample as often as it says; gives how long the last run of each took, in microseconds. Raises
    ModelBroken."""
    took = []
    samples = [(f"sample {each.name!r}", _sample(model.config, each), each.count) for each in model.config.warmups]
    if model.config.backend == "onnxruntime":
        samples += [(f"a batch of {rows}", _zeros(model.config, rows), 1) for rows in _sizes(model.config)]
    for name, arrays, count in samples:
        run_us = 0
        for _ in range(count):
            try:
                run_us = model.run_on(Inputs(arrays), memoryview(b""), monotonic_ns()).compute_us
            except OverspillError as error:
                raise ModelBroken(
                    f"model {model.config.name!r} fails in its warm-up, on {name}: {error}"
                ) from error.__cause__
        took.append(run_us)
    return tuple(took)


def _sizes(config: ModelConfig) -> tuple[int, ...]:
    batching = config.batching
    return () if batching is None else tuple(sorted({*batching.preferred, batching.rows_max} - {1}))


def _zeros(config: ModelConfig, rows: int) -> dict[str, np.ndarray[Any, Any]]:
    found = {}
    for decl in config.inputs:
        shape = (rows, *(1 if dim == -1 else dim for dim in decl.dims[1:]))
        found[decl.name] = np.full(shape, b"", object) if decl.dtype == "BYTES" else _empty(decl.dtype, shape)
    return found


def _empty(dtype: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.zeros(shape, DType[dtype].numpy)


def _sample(config: ModelConfig, sample: Warmup) -> dict[str, np.ndarray[Any, Any]]:
    missing = {decl.name for decl in config.inputs} ^ {given.name for given in sample.inputs}
    if missing:
        raise ModelBroken(
            f"model {config.name!r}: warm-up {sample.name!r} and the model's inputs differ in"
            f" {', '.join(sorted(missing))}; give each input once"
        )
    batch = (sample.batch_size,) if config.max_batch_size else ()
    return {given.name: _values(config, given, (*batch, *given.dims)) for given in sample.inputs}


def _values(config: ModelConfig, given: WarmupInput, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if given.file:
        return _from_file(config, given, shape)
    if given.dtype == "BYTES":
        return np.full(shape, b"", object)
    if not given.random:
        return _empty(given.dtype, shape)
    rng = np.random.default_rng(1)
    kind = DType[given.dtype].numpy
    if kind.kind == "f":
        return rng.random(shape).astype(kind)
    high = 2 if given.dtype == "BOOL" else 128
    return rng.integers(0, high, shape).astype(kind)


def _from_file(config: ModelConfig, given: WarmupInput, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """One item's values as they travel, for each item of the batch."""
    path = Path(config.path).parent / "warmup" / given.file
    try:
        raw = path.read_bytes()
        if given.dtype == "BYTES":
            item: np.ndarray[Any, Any] = bytes_decode(raw, prod(given.dims)).reshape(given.dims)
        else:
            item = np.frombuffer(raw, DType[given.dtype].numpy).reshape(given.dims)
        return np.broadcast_to(item, shape).copy()
    except (OSError, ValueError, OverspillError) as error:
        raise ModelBroken(
            f"model {config.name!r}: {path} is no {given.dtype} {list(given.dims)} ({error}); write raw values into it"
        ) from None
