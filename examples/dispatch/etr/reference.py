"""Both networks in plain NumPy: the answer that every other way of running them is held against.

It reads the same weights as the ONNX file and follows the same order of operations in float32. It is slow on purpose
and never serves requests. Next: `graph.py`, the same networks as ONNX graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.etr.network import (
    DENSE_FIELDS,
    EMBEDDING,
    ENCODER_HEADS,
    ENCODER_LAYERS,
    ENCODER_WIDTH,
    MASK_ADDEND,
    NORMALISED_MAX,
    STOP_TYPES,
    Array,
    Weights,
)

if TYPE_CHECKING:
    from examples.dispatch.etr.deliveries import MiniInputs
    from examples.dispatch.etr.features import EtrInputs, Float32, Int32

LAYER_NORM_EPSILON = np.float32(1e-5)


def _softplus(x: Array) -> Array:
    out: Array = np.logaddexp(x, np.float32(0.0))
    return out


def _linear(w: Weights, name: str, x: Array) -> Array:
    out: Array = x @ w[f"{name}.w"] + w[f"{name}.b"]
    return out


def _relu(x: Array) -> Array:
    out: Array = np.maximum(x, np.float32(0.0))
    return out


def _layer_norm(w: Weights, name: str, x: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    variance = (centred * centred).mean(axis=-1, keepdims=True)
    out: Array = centred / np.sqrt(variance + LAYER_NORM_EPSILON) * w[f"{name}.g"] + w[f"{name}.b"]
    return out


def _normalise(w: Weights, name: str, x: Array) -> Array:
    limit = np.float32(NORMALISED_MAX)
    out: Array = np.clip((x - w[f"norm.{name}.mean"]) * w[f"norm.{name}.scale"], -limit, limit)
    return out


def _rows_of(w: Weights, ids: Int32) -> Int32:
    rows: Int32 = np.mod(ids, w["ids.buckets"]) + w["ids.offsets"]
    return rows


def _second_order(fields: Array) -> Array:
    """The factorization machine's pairwise term: half of (square of the sum minus sum of the squares), [B, 1]."""
    total = fields.sum(axis=1)
    pairwise: Array = np.float32(0.5) * (total * total - (fields * fields).sum(axis=1)).sum(axis=1, keepdims=True)
    return pairwise


def _deep(w: Weights, x: Array) -> Array:
    return _relu(_linear(w, "deep.1", _relu(_linear(w, "deep.0", x))))


def mini_forward(w: Weights, inputs: MiniInputs) -> Float32:
    """Minutes from order to receipt, float32 [N]."""
    dense = _normalise(w, "dense", inputs.dense)
    rows = _rows_of(w, inputs.ids)
    fields = np.concatenate((w["ids.embedding"][rows], dense[:, :, None] * w["dense.embedding"]), axis=1)
    first = w["ids.linear"][rows].sum(axis=1) + _linear(w, "dense.linear", dense)
    deep = _linear(w, "deep.2", _deep(w, fields.reshape(len(fields), fields.shape[1] * EMBEDDING)))
    minutes: Float32 = _softplus(first + _second_order(fields) + deep)[:, 0]
    return minutes


def _attention(w: Weights, name: str, x: Array, addend: Array) -> Array:
    """Self-attention over the stops of a pair; x [B, L, 64], addend [B, 1, 1, L]. 1/sqrt(d) is in the weights."""
    pairs, width, _ = x.shape
    head = ENCODER_WIDTH // ENCODER_HEADS
    qkv = _linear(w, f"{name}.qkv", x).reshape(pairs, width, 3, ENCODER_HEADS, head).transpose(2, 0, 3, 1, 4)
    scores = qkv[0] @ qkv[1].transpose(0, 1, 3, 2) + addend
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True)) if width else scores
    mixed = (weights / weights.sum(axis=-1, keepdims=True)) @ qkv[2]
    return _linear(w, f"{name}.out", mixed.transpose(0, 2, 1, 3).reshape(pairs, width, ENCODER_WIDTH))


def _encode(w: Weights, stops: Array, inputs: EtrInputs, real: Array) -> Array:
    grid = w["stop.grid"][np.mod(inputs.stop_grid, np.int32(len(w["stop.grid"])))]
    x = _linear(w, "stop.in", np.concatenate((stops, grid), axis=2))
    x = x + w["stop.type"][np.mod(inputs.stop_type, np.int32(STOP_TYPES))]
    addend = np.where(real, np.float32(0.0), np.float32(MASK_ADDEND))[:, None, None, :]
    for index in range(ENCODER_LAYERS):
        name = f"encoder.{index}"
        x = x + _attention(w, name, _layer_norm(w, f"{name}.norm1", x), addend)
        x = x + _linear(w, f"{name}.down", _relu(_linear(w, f"{name}.up", _layer_norm(w, f"{name}.norm2", x))))
    return _layer_norm(w, "encoder.norm", x)


def etr_forward(w: Weights, inputs: EtrInputs) -> Float32:
    """Minutes from now until each stop, float32 [B, L], never decreasing along a row."""
    pairs = len(inputs.ids)
    real = inputs.mask > np.float32(0.5)
    dense = _normalise(w, "dense", inputs.dense)
    rows = _rows_of(w, inputs.ids)
    learned = _linear(w, "dense.fields", dense).reshape(pairs, DENSE_FIELDS, EMBEDDING)
    fields = np.concatenate((w["ids.embedding"][rows], learned), axis=1)
    first = w["ids.linear"][rows].sum(axis=1) + _linear(w, "dense.linear", dense)
    deep = _relu(_linear(w, "deep.2", _deep(w, fields.reshape(pairs, fields.shape[1] * EMBEDDING))))

    stops = _normalise(w, "stops", np.where(real[:, :, None], inputs.stops, np.float32(0.0)))
    encoded = _encode(w, stops, inputs, real)
    hidden = _relu(_linear(w, "head.stop", encoded) + (deep @ w["head.pair.w"])[:, None, :])
    pace = (first + _second_order(fields))[:, None, :]
    step = _softplus(_linear(w, "head.out", hidden) + stops @ w["head.skip.w"] + pace)[:, :, 0]
    minutes: Float32 = np.cumsum(np.where(real, step, np.float32(0.0)), axis=1, dtype=np.float32)
    return minutes
