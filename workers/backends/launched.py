"""Runs a python model that only launches kernels: its tensors are brought to the card, and with graphs it is replayed.

    class Model:
        def __init__(self, config): ...
        def sizes(self, shapes): ...            # {"x": (4, 8)} in, {"y": (4,)} out: the shapes of all outputs
        def launch(self, inputs, outputs): ...  # CuPy arrays by name; launches on the current stream, waits for none

The arrays of some shapes are the same in each call, so that a recorded call can be replayed
(`optimization { cuda { graphs: true } }`): what `launch` does must follow from shapes alone. Inputs come from the
caller's slots or from memory that a client has on the card, outputs go back the same way. CuPy is imported when the
first such model is loaded. Read `workers/backends/graphs.py` next.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.dtypes import DType
from fabric.errors import MissingDependency, ModelBroken, ModelFailed
from workers.backends.graphs import Graphs, check_alike

if TYPE_CHECKING:
    from workers.backends.base import Inputs, Outputs
    from workers.backends.on_card import CardArray
    from workers.backends.python import PythonModel
    from workers.modelconfig import ModelConfig

BENCHES_MAX: Final = 32
"""Sets of shapes whose arrays are kept on the card."""

Arrays = dict[str, Any]
Shapes = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Bench:
    """The arrays on the card for one set of shapes."""

    inputs: Arrays
    outputs: Arrays


class LaunchedModel:  # mutable: keeps arrays on the card
    """One python model with `launch`. Raises MissingDependency or ModelBroken when it cannot run here."""

    reads_cards = True

    def __init__(self, config: ModelConfig, model: PythonModel, *, on_gpu: bool) -> None:
        if not on_gpu:
            raise ModelBroken(f"model {config.name!r} launches kernels and this executor has no GPU; use cuda:all")
        texts = [decl.name for decl in (*config.inputs, *config.outputs) if decl.dtype == "BYTES"]
        if texts:
            raise ModelBroken(f"model {config.name!r}: {texts[0]!r} is TYPE_STRING, which no kernel reads; use numbers")
        try:
            import cupy
        except ImportError:
            raise MissingDependency(f"model {config.name!r} needs CuPy; install it: pip install cupy-cuda13x") from None
        self._cupy: Any = cupy
        self._config = config
        self._loaded = model
        self._stream: Any = cupy.cuda.Stream(non_blocking=True)
        self._benches: dict[Shapes, Bench] = {}
        self._graphs: Graphs[Any] | None = Graphs(config.name) if config.cuda_graphs else None

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Brings the inputs, launches, and takes the outputs."""
        sources = {decl.name: inputs.on_card(decl.name) or inputs[decl.name] for decl in self._config.inputs}
        shapes = tuple(tuple(each.shape) for each in sources.values())
        bench = self._bench(shapes)
        with self._stream:
            for name, source in sources.items():
                self._bring(bench.inputs[name], source)
            self._run(shapes, bench)
            for decl in self._config.outputs:
                there = bench.outputs[decl.name]
                wanted = outputs.on_card(decl.name, decl.dtype, there.shape)
                if wanted is not None:
                    self._cupy.copyto(self._cupy.asarray(wanted), there)
                else:
                    there.get(out=outputs.allocate(decl.name, decl.dtype, there.shape), stream=self._stream)
        self._stream.synchronize()

    def warm_up(self) -> bool:
        """Runs on zeros of the declared sizes, 1 where any size goes; with graphs twice, so that they are there."""
        shapes = tuple(tuple(1 if dim == -1 else dim for dim in decl.dims) for decl in self._config.inputs)
        bench = self._bench(shapes)
        with self._stream:
            for array in bench.inputs.values():
                array.fill(0)
            for _ in range(1 if self._graphs is None else 2):
                self._run(shapes, bench)
        self._stream.synchronize()
        return True

    def close(self) -> None:
        """Lets go of module and arrays."""
        self._benches.clear()
        self._graphs = None
        self._loaded.close()

    def _run(self, shapes: Shapes, bench: Bench) -> None:
        graph = self._graphs.find(shapes, lambda: self._record(bench)) if self._graphs is not None else None
        if graph is not None:
            graph.launch(stream=self._stream)
        else:
            self._loaded.model.launch(bench.inputs, bench.outputs)

    def _record(self, bench: Bench) -> Any:
        launch = self._loaded.model.launch
        launch(bench.inputs, bench.outputs)
        ran = [array.get(stream=self._stream) for array in bench.outputs.values()]
        self._stream.begin_capture()
        try:
            launch(bench.inputs, bench.outputs)
        except BaseException:
            with suppress(Exception):  # what went wrong in between says more
                self._stream.end_capture()
            raise
        graph = self._stream.end_capture()
        graph.launch(stream=self._stream)
        replayed = [array.get(stream=self._stream) for array in bench.outputs.values()]
        check_alike(tuple(bench.outputs), ran, replayed)
        return graph

    def _bench(self, shapes: Shapes) -> Bench:
        found = self._benches.pop(shapes, None)
        if found is None:
            found = self._make(shapes)
            while len(self._benches) >= BENCHES_MAX:
                oldest = next(iter(self._benches))
                del self._benches[oldest]
                if self._graphs is not None:
                    self._graphs.drop(oldest)  # it works on these arrays
        self._benches[shapes] = found
        return found

    def _make(self, shapes: Shapes) -> Bench:
        inputs = {
            decl.name: self._empty(decl.dtype, shape) for decl, shape in zip(self._config.inputs, shapes, strict=True)
        }
        sizes = self._loaded.model.sizes({name: array.shape for name, array in inputs.items()})
        missing = [decl.name for decl in self._config.outputs if decl.name not in sizes]
        if missing:
            raise ModelFailed(
                f"model {self._config.name!r} gives no size for output {missing[0]!r}; have sizes tell it"
            )
        outputs = {decl.name: self._empty(decl.dtype, tuple(sizes[decl.name])) for decl in self._config.outputs}
        return Bench(inputs, outputs)

    def _empty(self, dtype: str, shape: tuple[int, ...]) -> Any:
        try:
            return self._cupy.empty(shape, DType[dtype].numpy)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None

    def _bring(self, there: Any, source: CardArray | np.ndarray[Any, Any]) -> None:
        if isinstance(source, np.ndarray):
            there.set(source, stream=self._stream)
        else:
            self._cupy.copyto(there, self._cupy.asarray(source))
