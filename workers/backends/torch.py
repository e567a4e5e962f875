"""Runs a model that torch has written: `NAME/<version>/model.pt2` (torch.export) or `model.pt` (TorchScript).

Inputs are given by position, in the order of `config.pbtxt`, and outputs come in its order too. They are copied
straight between the caller's slots and the GPU, or on the GPU alone where a client has them there. With
`optimization { cuda { graphs: true } }` shapes that come again are replayed as one graph. The library is imported when
the first such model is loaded. Read `workers/backends/graphs.py` next.
"""

from __future__ import annotations

import importlib
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType
from fabric.errors import MissingDependency, ModelBroken
from workers.backends.choose import uses_gpu
from workers.backends.graphs import Graphs, check_alike
from workers.faults import told

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.backends.base import Inputs, Outputs
    from workers.backends.on_card import CardArray
    from workers.modelconfig import ModelConfig, TensorDecl

FILES = ("model.pt2", "model.pt")
WARM_RUNS = 3
"""TorchScript looks at its first two runs and makes another program of them."""


class TorchModel:
    """One loaded module. Raises MissingDependency or ModelBroken when it cannot be."""

    def __init__(self, config: ModelConfig, threads: int, *, on_gpu: bool) -> None:
        texts = [decl.name for decl in (*config.inputs, *config.outputs) if decl.dtype == "BYTES"]
        if texts:
            raise ModelBroken(
                f"model {config.name!r}: torch has no texts, and {texts[0]!r} is TYPE_STRING; use numbers"
            )
        path = next((Path(config.path) / name for name in FILES if (Path(config.path) / name).is_file()), None)
        if path is None:
            raise ModelBroken(f"model {config.name!r} has no {' or '.join(FILES)} in {config.path}; put one there")
        try:
            import torch
        except ImportError:
            raise MissingDependency(f"model {config.name!r} needs torch; install it: pip install torch") from None
        self._torch: Any = torch
        self._config = config
        lacks = "" if torch.cuda.is_available() else "torch finds none; install a build of torch with CUDA"
        self._device = "cuda" if uses_gpu(config, on_gpu=on_gpu, lacks=lacks) else "cpu"
        torch.set_num_threads(config.whole_number("intra_op_threads", threads))
        # The caller's memory is shown read-only; torch cannot express that and would say so each time.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        graphs = config.cuda_graphs and self._device == "cuda"
        self._graphs: Graphs[TorchGraph] | None = Graphs(config.name) if graphs else None
        try:
            self._module: Any = self._load(path)
        except Exception as error:  # noqa: BLE001 - a file of somebody else's: anything may be wrong with it
            raise ModelBroken(f"model {config.name!r}: {path.name} cannot be loaded: {told(error)}") from None

    @property
    def reads_cards(self) -> bool:
        """Whether it takes inputs and places for outputs on the card as they are."""
        return self._device == "cuda"

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs the module on the inputs, and writes every declared output into its slot."""
        given = [self._shown(inputs, decl) for decl in self._config.inputs]
        for decl, result in zip(self._config.outputs, self._compute(given), strict=True):
            there = result.detach().contiguous()
            if decl.dtype == "BF16":
                there = there.view(self._torch.uint16)
            dtype, shape = _numpy_name(there), tuple(there.shape)
            wanted = outputs.on_card(decl.name, dtype, shape)
            if wanted is not None:
                self._over(wanted).view(there.dtype).copy_(there, non_blocking=True)
                continue
            target = outputs.allocate(decl.name, dtype, shape)
            self._torch.from_numpy(target).copy_(there, non_blocking=True)
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def warm_up(self) -> bool:
        """Runs once on zeros of the declared sizes, 1 where any size goes; with graphs twice, so that they are there
        for these."""
        given = []
        for decl in self._config.inputs:
            shape = tuple(1 if dim == -1 else dim for dim in decl.dims)
            given.append(self._tensor(self._torch.from_numpy(np.zeros(shape, DType[decl.dtype].numpy)), decl.dtype))
        for _ in range(1 if self._graphs is None else 2):
            self._compute(given)
        return True

    def _compute(self, given: list[Any]) -> tuple[Any, ...]:
        """The module's outputs, on its device: by a graph, where there is one for these shapes."""
        if self._graphs is not None:
            graph = self._graphs.find(tuple(tuple(each.shape) for each in given), lambda: self._record(given))
            if graph is not None:
                return graph.replay(given)
        return self._run([each.to(self._device, non_blocking=True) for each in given])

    def _record(self, given: list[Any]) -> TorchGraph:
        graph = TorchGraph(self._torch, self._run, given)
        ran = self._run([each.to(self._device) for each in given])
        names = tuple(decl.name for decl in self._config.outputs)
        replayed = graph.replay(given)
        check_alike(names, [self._bytes_of(each) for each in ran], [self._bytes_of(each) for each in replayed])
        return graph

    def _bytes_of(self, tensor: Any) -> np.ndarray[Any, Any]:
        found: np.ndarray[Any, Any] = tensor.detach().reshape(-1).view(self._torch.uint8).cpu().numpy()
        return found

    def _shown(self, inputs: Inputs, decl: TensorDecl) -> Any:
        """An input where it lies in the caller's slot, or a copy of it on the card, since a module may write there."""
        there = inputs.on_card(decl.name)
        if there is not None:
            return self._tensor(self._over(there).clone(), decl.dtype)
        return self._tensor(self._torch.from_numpy(inputs[decl.name]), decl.dtype)

    def _over(self, there: CardArray) -> Any:
        """A tensor over memory on the card; unsigned 16 bits as signed ones, which every release of torch takes."""
        if there.dtype == np.uint16:
            there = replace(there, dtype=np.dtype(np.int16))
        return self._torch.as_tensor(there, device="cuda")

    def _tensor(self, there: Any, dtype: str) -> Any:
        if dtype == "BF16":
            return there.view(self._torch.bfloat16)
        return there.view(self._torch.uint16) if dtype == "UINT16" else there

    def _load(self, path: Path) -> Any:
        torch = self._torch
        if path.suffix == ".pt2":
            # A program holds the device that it was exported on in its own steps, not only in its weights.
            passes = importlib.import_module("torch.export.passes")
            return passes.move_to_device_pass(torch.export.load(str(path)), self._device).module()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it is the file's form, which its owner has chosen
            return torch.jit.load(str(path), map_location=self._device).eval()

    def _run(self, given: list[Any]) -> tuple[Any, ...]:
        try:
            with self._torch.inference_mode():
                results = self._module(*given)
        except self._torch.OutOfMemoryError as error:
            raise MemoryError(told(error)) from None
        found = tuple(results) if isinstance(results, (tuple, list)) else (results,)
        if len(found) != len(self._config.outputs):
            raise RuntimeError(
                f"the module gives {len(found)} outputs and config.pbtxt declares {len(self._config.outputs)}"
            )
        return found


class TorchGraph:  # mutable: its tensors are written to by each replay
    """One run of a module, recorded for the shapes of `given`. Raises whatever torch raises where it cannot be."""

    def __init__(self, torch: Any, run: Callable[[list[Any]], tuple[Any, ...]], given: list[Any]) -> None:
        self._inputs = [torch.empty_like(each, device="cuda").copy_(each) for each in given]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # what libraries do in their first runs must not be recorded
            for _ in range(WARM_RUNS):
                run(self._inputs)
        torch.cuda.current_stream().wait_stream(aside)
        torch.cuda.synchronize()
        self._graph: Any = torch.cuda.CUDAGraph()
        ours, pool = torch.cuda.current_stream(), torch.cuda.graph_pool_handle()
        try:
            # Other threads of this process never use the card, and may do whatever they like.
            with torch.cuda.graph(self._graph, pool=pool, capture_error_mode="thread_local"):
                self._outputs = run(self._inputs)
        except BaseException:
            # torch leaves its own stream and its memory's list of recordings as they were in the middle of this one.
            torch.cuda.set_stream(ours)
            with suppress(Exception):
                torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
            raise

    def replay(self, given: list[Any]) -> tuple[Any, ...]:
        """The outputs for other inputs of the same shapes; they are good until the next replay."""
        for own, each in zip(self._inputs, given, strict=True):
            own.copy_(each, non_blocking=True)
        self._graph.replay()
        return self._outputs


def _numpy_name(tensor: Any) -> str:
    """numpy's name of a tensor's dtype: `float32` of `torch.float32`."""
    return str(tensor.dtype).partition(".")[2]
