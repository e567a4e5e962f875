"""Runs a model that is a file of the Open Neural Network Exchange: `NAME/<version>/model.onnx`, on ONNX Runtime.

The file is checked against `model.onnx.sha256` where that stands beside it, and its inputs and outputs against
`config.pbtxt`, before any request comes. The library is imported when the first such model is loaded. Read
`workers/execution.py` next.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType
from fabric.errors import InvalidArgument, MissingDependency, ModelBroken
from workers.backends.choose import uses_gpu
from workers.faults import TEXT_MAX

if TYPE_CHECKING:
    from workers.backends.base import Inputs, Outputs
    from workers.modelconfig import ModelConfig, TensorDecl

_CUDA = "CUDAExecutionProvider"
_ONNX_NAMES = {
    "tensor(bool)": "BOOL", "tensor(uint8)": "UINT8", "tensor(uint16)": "UINT16", "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64", "tensor(int8)": "INT8", "tensor(int16)": "INT16", "tensor(int32)": "INT32",
    "tensor(int64)": "INT64", "tensor(float16)": "FP16", "tensor(float)": "FP32", "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}  # fmt: skip


class OnnxModel:
    """One session with `threads` threads. Raises MissingDependency or ModelBroken when it cannot be made."""

    def __init__(self, config: ModelConfig, threads: int, *, on_gpu: bool = False) -> None:
        self._config = config
        payload = _read(config)
        # Read by the library at its import: without it, it reports to its makers.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        try:
            import onnxruntime
        except ImportError:
            raise MissingDependency(
                f"model {config.name!r} needs ONNX Runtime; install it: pip install onnxruntime"
            ) from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = config.whole_number("intra_op_threads", threads)
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        # Threads that spin for work would take the node's and the callers' processors between requests.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self._session: Any = onnxruntime.InferenceSession(
                payload, options, providers=_providers(config, onnxruntime, on_gpu=on_gpu)
            )
        except Exception as error:  # noqa: BLE001 - the library raises types of its own for every kind of bad file
            raise ModelBroken(
                f"model {config.name!r}: model.onnx cannot be loaded; export it again ({_one_line(error)})"
            ) from None
        _compare(config, "input", config.inputs, self._session.get_inputs())
        _compare(config, "output", config.outputs, self._session.get_outputs())
        self._names = [decl.name for decl in config.outputs]
        self._texts = {decl.name for decl in config.inputs if decl.dtype == "BYTES"}

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs the session on the inputs and copies every declared output."""
        feeds = {name: _as_text(array) if name in self._texts else array for name, array in inputs.items()}
        try:
            results = self._session.run(self._names, feeds)
        except Exception as error:  # noqa: BLE001 - the library raises types of its own; the sentence is what is useful
            raise RuntimeError(_one_line(error)) from None
        for name, result in zip(self._names, results, strict=True):
            outputs[name] = result

    def warm_up(self) -> bool:
        """Runs once on zeros of the declared sizes, 1 where any size goes."""
        feeds = {}
        for decl in self._config.inputs:
            shape = tuple(1 if dim == -1 else dim for dim in decl.dims)
            feeds[decl.name] = np.full(shape, "") if decl.dtype == "BYTES" else np.zeros(shape, DType[decl.dtype].numpy)
        try:
            self._session.run(self._names, feeds)
        except Exception as error:  # noqa: BLE001 - as in execute
            raise ModelBroken(
                f"model {self._config.name!r} fails on zeros of its declared sizes: {_one_line(error)}"
            ) from None
        return True


def _providers(config: ModelConfig, library: Any, *, on_gpu: bool) -> list[Any]:
    """The CUDA provider before the CPU's where the model is to use the executor's GPU and this build has it."""
    lacks = "" if _CUDA in library.get_available_providers() else "this ONNX Runtime has no CUDA; use onnxruntime-gpu"
    if not uses_gpu(config, on_gpu=on_gpu, lacks=lacks):
        return ["CPUExecutionProvider"]
    options: dict[str, object] = {"device_id": 0, "cudnn_conv_algo_search": "HEURISTIC"}
    limit = config.whole_number("gpu_memory_bytes_max", 0)
    if limit:
        options["gpu_mem_limit"] = limit
    return [(_CUDA, options), "CPUExecutionProvider"]


def _as_text(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    try:
        texts = [item.decode() for item in array.reshape(-1).tolist()]
    except UnicodeDecodeError:
        raise InvalidArgument(
            "a BYTES input is no UTF-8 text, which is all that ONNX strings can hold; send text"
        ) from None
    return np.array(texts, dtype=object).reshape(array.shape)


def _one_line(error: BaseException) -> str:
    """The whole message in one line: the figures of a wrong dimension stand at its end. A long one lacks its middle,
    where the library names its own source."""
    text = " ".join(str(error).split()) or type(error).__name__
    half = TEXT_MAX // 2 - 2
    return text if len(text) <= TEXT_MAX else f"{text[:half]} … {text[-half:]}"


def _read(config: ModelConfig) -> bytes:
    path = Path(config.path) / "model.onnx"
    try:
        payload = path.read_bytes()
        wanted_in = path.with_name("model.onnx.sha256")
        wanted = wanted_in.read_text().split()[0].lower() if wanted_in.exists() else ""
    except (OSError, IndexError, UnicodeDecodeError) as error:
        raise ModelBroken(f"model {config.name!r}: {path} or its sha256 cannot be read ({error})") from None
    if wanted and hashlib.sha256(payload).hexdigest() != wanted:
        raise ModelBroken(f"model {config.name!r}: {path} is not the file that model.onnx.sha256 names; copy it again")
    return payload


def _compare(config: ModelConfig, what: str, declared: tuple[TensorDecl, ...], found: list[Any]) -> None:
    theirs = {node.name: _ONNX_NAMES.get(node.type, node.type) for node in found}
    ours = {decl.name: decl.dtype for decl in declared}
    # A model may have outputs that nobody wants; inputs must all be given.
    if not ours.items() <= theirs.items() or (what == "input" and len(ours) != len(theirs)):
        raise ModelBroken(
            f"model {config.name!r}: config.pbtxt declares {what}s {ours}, model.onnx has {theirs}; make them equal"
        )
