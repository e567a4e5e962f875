"""Both networks as ONNX graphs, written node by node from their weights: no torch, same weights, same bytes.

Any int32 id is safe (taken modulo its bucket count before the Gather), padded stops are replaced before they are
read, and every shape with B >= 0 pairs and L >= 1 stops works, an empty batch included. It loads and saves nothing:
`modelfile.py` does. Next: `modelfile.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from examples.dispatch.etr.features import DENSE, ID_BUCKETS, STOP_GRID_BUCKETS, STOPS
from examples.dispatch.etr.network import (
    DENSE_FIELDS,
    EMBEDDING,
    ENCODER_HEADS,
    ENCODER_LAYERS,
    ENCODER_WIDTH,
    MASK_ADDEND,
    MINI_DENSE,
    NORMALISED_MAX,
    STOP_TYPES,
    Array,
    Weights,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

OPSET = 18
IR_VERSION = 8  # the IR of opset 18, so that ONNX Runtime from 1.14 on loads it


class _Graph:
    """Collects nodes and initializers; each call adds one operator and returns the name of its output."""

    def __init__(self, weights: Weights) -> None:
        import onnx

        self._onnx = onnx
        self.nodes: list[Any] = []
        self.initializers = [
            onnx.numpy_helper.from_array(array, parameter.name)
            for parameter, array in zip(weights.spec.parameters, weights.arrays, strict=True)
        ]

    def const(self, name: str, values: Array | np.generic) -> str:
        self.initializers.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, kind: str, *inputs: str, out: str, **attributes: Any) -> str:
        self.nodes.append(self._onnx.helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def split(self, source: str, names: Sequence[str]) -> None:
        self.nodes.append(
            self._onnx.helper.make_node(
                "Split", [source], list(names), name=f"{source}.split", axis=0, num_outputs=len(names)
            )
        )

    def gemm(self, name: str, x: str, out: str) -> str:
        """A linear layer on a matrix: x @ name.w + name.b."""
        return self.add("Gemm", x, f"{name}.w", f"{name}.b", out=out)

    def dense_relu(self, name: str, x: str) -> str:
        return self.add("Relu", self.gemm(name, x, f"{name}.linear"), out=f"{name}.relu")

    def layer_norm(self, name: str, x: str) -> str:
        return self.add("LayerNormalization", x, f"{name}.g", f"{name}.b", out=f"{name}.out", axis=-1, epsilon=1e-5)

    def normalise(self, name: str, x: str) -> str:
        centred = self.add("Sub", x, f"norm.{name}.mean", out=f"norm.{name}.centred")
        scaled = self.add("Mul", centred, f"norm.{name}.scale", out=f"norm.{name}.scaled")
        return self.add("Clip", scaled, "limit.low", "limit.high", out=f"norm.{name}.out")

    def finish(self, name: str, inputs: Sequence[Any], output: Any) -> bytes:
        graph = self._onnx.helper.make_graph(self.nodes, name, list(inputs), [output], self.initializers)
        opset = self._onnx.helper.make_opsetid("", OPSET)
        model = self._onnx.helper.make_model(graph, opset_imports=[opset], producer_name="overspill.etr")
        model.ir_version = IR_VERSION
        payload: bytes = model.SerializeToString(deterministic=True)
        return payload


def _constants(graph: _Graph) -> None:
    graph.const("limit.low", np.float32(-NORMALISED_MAX))
    graph.const("limit.high", np.float32(NORMALISED_MAX))
    graph.const("axis.1", np.array([1], np.int64))
    graph.const("axis.2", np.array([2], np.int64))
    graph.const("half", np.float32(0.5))


def _field_rows(graph: _Graph) -> str:
    """Rows of the ids in the one table, [B, fields]; Mod takes the divisor's sign, so none is negative."""
    bucket = graph.add("Mod", "ids", "ids.buckets", out="ids.bucket")
    return graph.add("Add", bucket, "ids.offsets", out="ids.rows")


def _first_order(graph: _Graph, rows: str, dense: str) -> str:
    linear = graph.add("Gather", "ids.linear", rows, out="first.ids.each")
    ids = graph.add("ReduceSum", linear, "axis.1", out="first.ids", keepdims=0)
    return graph.add("Add", ids, graph.gemm("dense.linear", dense, "first.dense"), out="first")


def _second_order(graph: _Graph, fields: str) -> str:
    total = graph.add("ReduceSum", fields, "axis.1", out="second.total", keepdims=0)
    square_of_sum = graph.add("Mul", total, total, out="second.square_of_sum")
    squares = graph.add("Mul", fields, fields, out="second.squares")
    sum_of_squares = graph.add("ReduceSum", squares, "axis.1", out="second.sum_of_squares", keepdims=0)
    difference = graph.add("Sub", square_of_sum, sum_of_squares, out="second.difference")
    whole = graph.add("ReduceSum", difference, "axis.1", out="second.whole", keepdims=1)
    return graph.add("Mul", whole, "half", out="second")


def _deep(graph: _Graph, fields: str, width: int) -> str:
    """The two hidden layers over all fields. The batch size is copied (0): an empty batch keeps its shape."""
    shape = graph.const("deep.shape", np.array([0, width], np.int64))
    flat = graph.add("Reshape", fields, shape, out="deep.in")
    return graph.dense_relu("deep.1", graph.dense_relu("deep.0", flat))


def mini_graph(weights: Weights) -> bytes:
    """The serialized ONNX model of `etr_mini`: ids [batch, 2], dense [batch, 29] -> delivery_min [batch]."""
    import onnx

    graph = _Graph(weights)
    _constants(graph)
    rows = _field_rows(graph)
    dense = graph.normalise("dense", "dense")
    column = graph.add("Unsqueeze", dense, "axis.2", out="dense.column")
    scaled = graph.add("Mul", column, "dense.embedding", out="dense.fields")
    fields = graph.add(
        "Concat", graph.add("Gather", "ids.embedding", rows, out="ids.fields"), scaled, out="fields", axis=1
    )
    deep = graph.gemm("deep.2", _deep(graph, fields, (2 + MINI_DENSE) * EMBEDDING), "deep.out")
    shallow = graph.add("Add", _first_order(graph, rows, dense), _second_order(graph, fields), out="shallow")
    minutes = graph.add("Softplus", graph.add("Add", shallow, deep, out="sum"), out="minutes")
    graph.add("Squeeze", minutes, "axis.1", out="delivery_min")
    info = onnx.helper.make_tensor_value_info
    inputs = (
        info("ids", onnx.TensorProto.INT32, ["batch", 2]),
        info("dense", onnx.TensorProto.FLOAT, ["batch", MINI_DENSE]),
    )
    return graph.finish("etr_mini", inputs, info("delivery_min", onnx.TensorProto.FLOAT, ["batch"]))


def _sizes(graph: _Graph) -> None:
    """Shapes that depend on B and L, spelled out in full: a -1 could not be resolved for an empty batch."""
    head = ENCODER_WIDTH // ENCODER_HEADS
    both = graph.add("Shape", "stops", out="size.both", start=0, end=2)
    rows = graph.add("ReduceProd", both, out="size.rows", keepdims=1)
    for name, leading, rest in (
        ("shape.flat", rows, [ENCODER_WIDTH]),
        ("shape.flat_in", rows, [len(STOPS) + EMBEDDING]),
        ("shape.qkv", both, [3, ENCODER_HEADS, head]),
        ("shape.stops", both, [64]),
        ("shape.steps", both, [1]),
    ):
        tail = graph.const(f"{name}.tail", np.array(rest, np.int64))
        graph.add("Concat", leading, tail, out=name, axis=0)


def _attention(graph: _Graph, name: str, x: str) -> str:
    qkv = graph.add("Reshape", graph.gemm(f"{name}.qkv", x, f"{name}.qkv.out"), "shape.qkv", out=f"{name}.heads")
    turned = graph.add("Transpose", qkv, out=f"{name}.turned", perm=[2, 0, 3, 1, 4])
    parts = [f"{name}.{part}" for part in ("q", "k", "v")]
    graph.split(turned, [f"{part}.one" for part in parts])
    query, key, value = (graph.add("Squeeze", f"{part}.one", "axis.0", out=part) for part in parts)
    key_turned = graph.add("Transpose", key, out=f"{name}.k.turned", perm=[0, 1, 3, 2])
    scores = graph.add("MatMul", query, key_turned, out=f"{name}.scores")
    masked = graph.add("Add", scores, "mask.addend", out=f"{name}.masked")
    mixed = graph.add(
        "MatMul", graph.add("Softmax", masked, out=f"{name}.weights", axis=-1), value, out=f"{name}.mixed"
    )
    back = graph.add("Transpose", mixed, out=f"{name}.back", perm=[0, 2, 1, 3])
    return graph.gemm(f"{name}.out", graph.add("Reshape", back, "shape.flat", out=f"{name}.flat"), f"{name}.attended")


def _encode(graph: _Graph, stops: str) -> str:
    """The stops of all pairs as one matrix [B*L, 64]; only attention sees which stop belongs to which pair."""
    cell = graph.add("Mod", "stop_grid", graph.const("grid.buckets", np.int32(STOP_GRID_BUCKETS)), out="grid.bucket")
    kind = graph.add("Mod", "stop_type", graph.const("type.buckets", np.int32(STOP_TYPES)), out="type.bucket")
    seen = graph.add(
        "Concat", stops, graph.add("Gather", "stop.grid", cell, out="grid.fields"), out="stop.seen", axis=2
    )
    x = graph.gemm("stop.in", graph.add("Reshape", seen, "shape.flat_in", out="stop.seen.flat"), "stop.projected")
    types = graph.add(
        "Reshape", graph.add("Gather", "stop.type", kind, out="type.fields"), "shape.flat", out="type.flat"
    )
    x = graph.add("Add", x, types, out="encoder.in")
    for index in range(ENCODER_LAYERS):
        name = f"encoder.{index}"
        x = graph.add("Add", x, _attention(graph, name, graph.layer_norm(f"{name}.norm1", x)), out=f"{name}.mid")
        up = graph.dense_relu(f"{name}.up", graph.layer_norm(f"{name}.norm2", x))
        x = graph.add("Add", x, graph.gemm(f"{name}.down", up, f"{name}.fed"), out=f"{name}.end")
    return graph.layer_norm("encoder.norm", x)


def _base_head(graph: _Graph, encoded: str, deep: str, stops: str, pace: str) -> str:
    """One step length per stop, [B, L]: how long after the stop before it the rider gets there."""
    from_stop = graph.add(
        "Reshape", graph.gemm("head.stop", encoded, "head.stop.flat"), "shape.stops", out="head.stop.out"
    )
    from_pair = graph.add(
        "Unsqueeze", graph.add("MatMul", deep, "head.pair.w", out="head.pair"), "axis.1", out="head.pair.row"
    )
    hidden = graph.add("Relu", graph.add("Add", from_stop, from_pair, out="head.sum"), out="head.hidden")
    flat = graph.add("Reshape", hidden, "shape.flat", out="head.flat")
    learned = graph.add("Reshape", graph.gemm("head.out", flat, "head.out.flat"), "shape.steps", out="head.learned")
    planned = graph.add("MatMul", stops, "head.skip.w", out="head.planned")
    step = graph.add("Add", graph.add("Add", learned, planned, out="head.both"), pace, out="head.step")
    return graph.add("Squeeze", graph.add("Softplus", step, out="head.positive"), "axis.2", out="step")


def base_graph(weights: Weights) -> bytes:
    """The serialized ONNX model of `etr`; inputs and output as documented in `features.py`."""
    import onnx

    graph = _Graph(weights)
    _constants(graph)
    graph.const("axis.0", np.array([0], np.int64))
    graph.const("axes.heads", np.array([1, 2], np.int64))
    graph.const("zero", np.float32(0.0))
    graph.const("far", np.float32(MASK_ADDEND))
    _sizes(graph)

    real = graph.add("Greater", "mask", "half", out="mask.real")
    real_row = graph.add("Unsqueeze", real, "axis.2", out="mask.column")
    stops = graph.normalise("stops", graph.add("Where", real_row, "stops", "zero", out="stops.kept"))
    addend = graph.add("Where", real, "zero", "far", out="mask.addend.flat")
    graph.add("Unsqueeze", addend, "axes.heads", out="mask.addend")

    rows = _field_rows(graph)
    dense = graph.normalise("dense", "dense")
    shape = graph.const("dense.shape", np.array([0, DENSE_FIELDS, EMBEDDING], np.int64))
    learned = graph.add("Reshape", graph.gemm("dense.fields", dense, "dense.projected"), shape, out="dense.learned")
    fields = graph.add(
        "Concat", graph.add("Gather", "ids.embedding", rows, out="ids.fields"), learned, out="fields", axis=1
    )
    deep = graph.dense_relu("deep.2", _deep(graph, fields, (len(ID_BUCKETS) + DENSE_FIELDS) * EMBEDDING))
    pace = graph.add("Add", _first_order(graph, rows, dense), _second_order(graph, fields), out="pace.flat")
    pace = graph.add("Unsqueeze", pace, "axis.1", out="pace")

    step = _base_head(graph, _encode(graph, stops), deep, stops, pace)
    kept = graph.add("Where", real, step, "zero", out="step.kept")
    graph.add("CumSum", kept, graph.const("axis.stops", np.int64(1)), out="arrival_min")
    return graph.finish("etr", _base_inputs(), onnx.helper.make_tensor_value_info("arrival_min", 1, ["batch", "stops"]))


def _base_inputs() -> tuple[Any, ...]:
    import onnx

    info, int32, fp32 = onnx.helper.make_tensor_value_info, onnx.TensorProto.INT32, onnx.TensorProto.FLOAT
    return (
        info("ids", int32, ["batch", len(ID_BUCKETS)]),
        info("dense", fp32, ["batch", len(DENSE)]),
        info("stops", fp32, ["batch", "stops", len(STOPS)]),
        info("stop_type", int32, ["batch", "stops"]),
        info("stop_grid", int32, ["batch", "stops"]),
        info("mask", fp32, ["batch", "stops"]),
    )
