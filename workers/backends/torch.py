"""Runs a model that torch has written: `NAME/<version>/model.pt2` (torch.export) or `model.pt` (TorchScript).

Inputs are given by position, in the order of `config.pbtxt`, and outputs come in its order too. They are copied
straight between the caller's slots and the GPU. The library is imported when the first such model is loaded. Read
`workers/backends/tensorrt.py` next.
"""

from __future__ import annotations

import importlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType
from fabric.errors import MissingDependency, ModelBroken
from workers.backends.choose import uses_gpu
from workers.faults import told

if TYPE_CHECKING:
    from workers.backends.base import Inputs, Outputs
    from workers.modelconfig import ModelConfig

FILES = ("model.pt2", "model.pt")


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
        try:
            self._module: Any = self._load(path)
        except Exception as error:  # noqa: BLE001 - a file of somebody else's: anything may be wrong with it
            raise ModelBroken(f"model {config.name!r}: {path.name} cannot be loaded: {told(error)}") from None

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs the module on the inputs, and writes every declared output into its slot."""
        given = [self._bring(inputs[decl.name], decl.dtype) for decl in self._config.inputs]
        results = self._run(given)
        for decl, result in zip(self._config.outputs, results, strict=True):
            there = result.detach().contiguous()
            if decl.dtype == "BF16":
                there = there.view(self._torch.uint16)
            target = outputs.allocate(decl.name, _numpy_name(there), tuple(there.shape))
            self._torch.from_numpy(target).copy_(there, non_blocking=True)
        if self._device == "cuda":
            self._torch.cuda.synchronize()

    def warm_up(self) -> bool:
        """Runs once on zeros of the declared sizes, 1 where any size goes."""
        given = []
        for decl in self._config.inputs:
            shape = tuple(1 if dim == -1 else dim for dim in decl.dims)
            given.append(self._bring(np.zeros(shape, DType[decl.dtype].numpy), decl.dtype))
        self._run(given)
        return True

    def _load(self, path: Path) -> Any:
        torch = self._torch
        if path.suffix == ".pt2":
            # A program holds the device that it was exported on in its own steps, not only in its weights.
            passes = importlib.import_module("torch.export.passes")
            return passes.move_to_device_pass(torch.export.load(str(path)), self._device).module()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it is the file's form, which its owner has chosen
            return torch.jit.load(str(path), map_location=self._device).eval()

    def _bring(self, array: np.ndarray[Any, Any], dtype: str) -> Any:
        there = self._torch.from_numpy(array)
        if dtype == "BF16":
            there = there.view(self._torch.bfloat16)
        return there.to(self._device, non_blocking=True)

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


def _numpy_name(tensor: Any) -> str:
    """numpy's name of a tensor's dtype: `float32` of `torch.float32`."""
    return str(tensor.dtype).partition(".")[2]
