"""Run a checked model file with ONNX Runtime in this process: what `evaluate.py` and `bench.py` need, no more.

Requests of the product go through a node's own ONNX Runtime backend; this session exists so that accuracy and speed
can be told without one. The runtime is imported when the first session opens. Next: `evaluate.py`.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.dispatch.etr.modelfile import BrokenModelFile, read_model

if TYPE_CHECKING:
    from pathlib import Path

    from examples.dispatch.etr.deliveries import MiniInputs
    from examples.dispatch.etr.features import EtrInputs, Float32


class Session:
    """One model on the CPU with a fixed number of threads."""

    def __init__(self, model: Path, threads: int) -> None:
        """Open a model file; raises BrokenModelFile where it is unfit or ONNX Runtime is not installed."""
        payload = read_model(model)
        if importlib.util.find_spec("onnxruntime") is None:
            raise BrokenModelFile("Running model files needs ONNX Runtime: pip install onnxruntime.")
        # ONNX Runtime 1.32 reports its use to its maker from the moment it is imported, unless told not to.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(payload, options, providers=["CPUExecutionProvider"])

    def etr(self, inputs: EtrInputs) -> Float32:
        """Minutes until each stop, float32 [B, L]."""
        return self._run(
            (
                ("ids", inputs.ids),
                ("dense", inputs.dense),
                ("stops", inputs.stops),
                ("stop_type", inputs.stop_type),
                ("stop_grid", inputs.stop_grid),
                ("mask", inputs.mask),
            )
        )

    def mini(self, inputs: MiniInputs) -> Float32:
        """Minutes from order to receipt, float32 [N]."""
        return self._run((("ids", inputs.ids), ("dense", inputs.dense)))

    def _run(self, feeds: tuple[tuple[str, Any], ...]) -> Float32:
        (answer,) = self._session.run(None, dict(feeds))
        return np.asarray(answer, np.float32)
