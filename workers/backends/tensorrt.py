"""Runs a TensorRT engine, `NAME/<version>/model.plan`, by TensorRT or by its lean runtime, on the executor's GPU.

A plan belongs to one release of TensorRT and one kind of card; the library itself is asked whether it takes it, and
what it says is told. Each model has a context and a stream; a request's tensors are copied between its slots and
buffers on the card that grow as needed. A model without a plan and with a `model.onnx` is built first, where the full
library is: `workers/backends/tensorrt_build.py`. Read that next.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.errors import InvalidArgument, MissingDependency, ModelBroken
from workers.backends.graphs import Graphs
from workers.cuda.queue import CudaQueue

if TYPE_CHECKING:
    from workers.backends.base import Inputs, Outputs
    from workers.modelconfig import ModelConfig

MODULES: Final = ("tensorrt", "tensorrt_lean", "tensorrt_bindings", "tensorrt_lean_bindings")
"""The full library, the lean runtime, and both as their bindings' wheels name them."""
_DTYPES: Final = {
    "BOOL": "BOOL", "UINT8": "UINT8", "INT8": "INT8", "INT32": "INT32", "INT64": "INT64", "HALF": "FP16",
    "FLOAT": "FP32", "BF16": "BF16",
}  # fmt: skip
_PLAN_BYTES_MIN: Final = 256
"""Less is no engine, whatever it begins with."""


def import_tensorrt(model: str) -> Any:
    """The library, whichever is there. Raises MissingDependency."""
    for name in MODULES:
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    raise MissingDependency(
        f"model {model!r} needs TensorRT; install it: pip install tensorrt, or, to run plans only,"
        " tensorrt-lean-cu13-bindings tensorrt-lean-cu13-libs"
    )


class TensorRtModel:  # mutable: owns a context and buffers
    """One engine, ready to run. Raises MissingDependency or ModelBroken when it cannot be."""

    reads_cards = True

    def __init__(self, config: ModelConfig, *, on_gpu: bool) -> None:
        if not on_gpu:  # without a card the library ends the process that asks it for an engine
            raise ModelBroken(f"model {config.name!r} is a TensorRT engine and this executor has no GPU; use cuda:all")
        self._config = config
        self._trt: Any = import_tensorrt(config.name)
        self._said = _listener(self._trt)
        plan = _read_plan(config, self._trt)
        self._runtime: Any = self._trt.Runtime(self._said)
        self._engine: Any = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            raise ModelBroken(
                f"model {config.name!r}: TensorRT {self._trt.__version__} does not take model.plan"
                f" ({self._said.last or 'it gives no reason'}); build it again with this release, for this card"
            )
        _compare(config, self._trt, self._engine)
        self._context: Any = self._engine.create_execution_context()
        if self._context is None:
            raise ModelBroken(
                f"model {config.name!r}: there is no memory for the engine's context"
                f" ({self._said.last}); load fewer models on this card"
            )
        self._queue = CudaQueue()
        self._graphs: Graphs[int] | None = None
        if config.cuda_graphs:
            self._graphs = Graphs(config.name, forget=self._queue.forget)

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs the engine. Raises InvalidArgument for shapes outside of its profile."""
        context, queue = self._context, self._queue
        places: list[tuple[tuple[int, ...], int]] = []
        for decl in self._config.inputs:
            there = inputs.on_card(decl.name)
            array = np.ascontiguousarray(inputs[decl.name]) if there is None else there
            shape = tuple(array.shape)
            if not context.set_input_shape(decl.name, shape):
                raise InvalidArgument(
                    f"input {decl.name!r} of model {self._config.name!r} has shape {list(shape)}, which is"
                    " outside of the engine's profile; send another shape, or build it for more"
                )
            if isinstance(array, np.ndarray):
                at = queue.bring(decl.name, array)
            else:
                at = queue.room(decl.name, array.nbytes)  # a graph reads the same place in each run
                queue.copy(at, array.address, array.nbytes)
            context.set_tensor_address(decl.name, at)
            places.append((shape, at))
        missing = list(context.infer_shapes())
        if missing:
            raise RuntimeError(f"the shapes of {', '.join(missing)} cannot be told before the run; export them fixed")
        results: list[tuple[str, np.ndarray[Any, Any]]] = []
        copies: list[tuple[int, int, int]] = []
        for decl in self._config.outputs:
            shape = tuple(context.get_tensor_shape(decl.name))
            wanted = outputs.on_card(decl.name, decl.dtype, shape)
            if wanted is not None:
                at = queue.room(decl.name, wanted.nbytes)
                copies.append((wanted.address, at, wanted.nbytes))
            else:
                target = outputs.allocate(decl.name, decl.dtype, shape)
                at = queue.room(decl.name, target.nbytes)
                results.append((decl.name, target))
            context.set_tensor_address(decl.name, at)
            places.append((shape, at))
        self._run(tuple(places))
        for name, target in results:
            queue.fetch(name, target)
        for words in copies:
            queue.copy(*words)
        queue.settle()

    def _run(self, places: tuple[tuple[tuple[int, ...], int], ...]) -> None:
        """Enqueues the run: as a graph, where there is one for these shapes and these buffers."""
        graph = None
        if self._graphs is not None:
            graph = self._graphs.find(places, lambda: self._queue.record(self._enqueue))
        if graph is not None:
            self._queue.replay(graph)
        else:
            self._enqueue()

    def _enqueue(self) -> None:
        if not self._context.execute_async_v3(self._queue.stream):
            raise RuntimeError(f"TensorRT did not run the engine: {self._said.last}")

    def warm_up(self) -> bool:
        """Runs nothing: an engine has compiled before, and a profile's smallest shapes may be zero."""
        return False

    def close(self) -> None:
        """Frees the buffers, the context and the engine."""
        self._queue.close()
        self._context = self._engine = self._runtime = None


def _read_plan(config: ModelConfig, trt: Any) -> bytes:
    path = Path(config.path) / "model.plan"
    if not path.is_file() and (path.with_name("model.onnx")).is_file():
        from workers.backends.tensorrt_build import built_plan

        return built_plan(config, trt)
    try:
        plan = path.read_bytes()
    except OSError as error:
        raise ModelBroken(
            f"model {config.name!r}: {path} cannot be read ({error.strerror}); put an engine there"
        ) from None
    if len(plan) < _PLAN_BYTES_MIN:
        raise ModelBroken(f"model {config.name!r}: {path} has {len(plan)} bytes, which is no engine; copy it again")
    return plan


def _listener(trt: Any) -> Any:
    """A logger for the library that keeps the last error: that is where it says why it refuses an engine."""

    class Listener(trt.ILogger):  # type: ignore[misc]  # the base is known when the library is
        def __init__(self) -> None:
            super().__init__()
            self.last = ""

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                self.last = " ".join(text.split())[:300]

    return Listener()


def _compare(config: ModelConfig, trt: Any, engine: Any) -> None:
    names = [engine.get_tensor_name(number) for number in range(engine.num_io_tensors)]
    for what, mode, declared in (
        ("input", trt.TensorIOMode.INPUT, config.inputs), ("output", trt.TensorIOMode.OUTPUT, config.outputs),
    ):  # fmt: skip
        of_engine = [name for name in names if engine.get_tensor_mode(name) == mode]
        theirs = {name: _DTYPES.get(engine.get_tensor_dtype(name).name, "?") for name in of_engine}
        ours = {decl.name: decl.dtype for decl in declared}
        if ours != theirs:
            raise ModelBroken(
                f"model {config.name!r}: config.pbtxt declares {what}s {ours}, model.plan has {theirs}; make them equal"
            )
