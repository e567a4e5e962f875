"""Serves etr on the executor's GPU by torch, in half precision (examples/dispatch/etr/torch_gpu.py).

It only hands over. Next: that file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.etr.features import ID_BUCKETS, STOPS_MAX, EtrInputs
from examples.dispatch.etr.modelfile import read_weights, shipped
from examples.dispatch.etr.network import BASE
from examples.dispatch.etr.torch_gpu import HalfEtr

if TYPE_CHECKING:
    from workers.backends.base import Inputs, ModelConfig, Outputs

PAIRS = 1024


class Model:
    """One request is one batch of pairs."""

    def __init__(self, config: ModelConfig) -> None:
        self._runner = HalfEtr(read_weights(BASE, shipped("etr")))

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Estimate the batch."""
        outputs["arrival_min"] = self._runner.etr(EtrInputs(**{name: inputs[name] for name in inputs}))

    def warm_up(self) -> None:
        """Choose kernels for a batch of usual size."""
        rng = np.random.default_rng(1)
        stops = (PAIRS, STOPS_MAX)
        inputs = EtrInputs(
            ids=rng.integers(0, min(ID_BUCKETS), (PAIRS, 7)).astype(np.int32),
            dense=rng.random((PAIRS, 16)).astype(np.float32),
            stops=rng.random((*stops, 14)).astype(np.float32),
            stop_type=rng.integers(0, 3, stops).astype(np.int32),
            stop_grid=rng.integers(0, 64, stops).astype(np.int32),
            mask=np.ones(stops, np.float32),
        )
        self._runner.etr(inputs)
