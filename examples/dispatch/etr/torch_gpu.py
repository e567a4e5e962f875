"""`etr` on a GPU by torch, in half precision: for a machine whose ONNX Runtime has no CUDA provider and no TensorRT.

The encoder over stops, nine tenths of the work, runs in float16. What is said once of a pair stays in float32, for its
error would count at each of sixteen stops, and so do normalisation, the head and the sum along the route. Weights are
those of the shipped model file. Torch is imported when the first runner is made. Next:
`torch_nets.py`, the same network in float32 for training.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from examples.dispatch.etr.network import (
    DENSE_FIELDS,
    EMBEDDING,
    ENCODER_HEADS,
    ENCODER_LAYERS,
    ENCODER_WIDTH,
    STOP_TYPES,
    Weights,
)
from examples.dispatch.etr.torch_nets import Named, _deep, _layer_norm, _linear, _normalise, _second_order

if TYPE_CHECKING:
    import numpy as np

    from examples.dispatch.etr.features import EtrInputs, Float32

HEAD = ENCODER_WIDTH // ENCODER_HEADS
HALF = ("encoder.0", "encoder.1", "stop.")


class TorchMissing(RuntimeError):
    """There is no torch, or torch finds no GPU; the text says what to install or check."""


class HalfEtr:
    """The network's weights on one GPU in float16, and page-locked memory on the way there."""

    def __init__(self, weights: Weights) -> None:
        """Take the weights over; raises TorchMissing with one sentence that says what to do."""
        if importlib.util.find_spec("torch") is None:
            raise TorchMissing("etr by torch on a GPU needs torch: install it with `pip install torch`.")
        import torch

        if not torch.cuda.is_available():
            raise TorchMissing("etr by torch was asked for on a GPU, but torch finds none: check `nvidia-smi`.")
        self._torch: Any = torch
        self._weights: Named = {
            parameter.name: self._resident(parameter.name, array)
            for parameter, array in zip(weights.spec.parameters, weights.arrays, strict=True)
        }

    def etr(self, inputs: EtrInputs) -> Float32:
        """Minutes until each stop, float32 [B, L]."""
        answer: Float32 = self.forward(self.bring(inputs)).cpu().numpy()
        return answer

    def bring(self, inputs: EtrInputs) -> tuple[Any, ...]:
        """The six tensors on the GPU, in the order of EtrInputs; page-locked ones are copied without waiting."""
        arrays = (inputs.ids, inputs.dense, inputs.stops, inputs.stop_type, inputs.stop_grid, inputs.mask)
        return tuple(self._torch.as_tensor(array).to("cuda", non_blocking=True) for array in arrays)

    def forward(self, brought: tuple[Any, ...]) -> Any:
        """The answer on the GPU, float32 [B, L]."""
        with self._torch.inference_mode():
            return _forward(self._torch, self._weights, *brought)

    def _resident(self, name: str, array: np.ndarray[Any, Any]) -> Any:
        tensor = self._torch.as_tensor(array.copy()).to("cuda")
        return tensor.half() if name.startswith(HALF) else tensor


def _attention(w: Named, name: str, x: Any, addend: Any) -> Any:
    pairs, width, _ = x.shape
    qkv = _linear(w, f"{name}.qkv", x).reshape(pairs, width, 3, ENCODER_HEADS, HEAD).permute(2, 0, 3, 1, 4)
    # 1/sqrt(d) is in the weights. Two plain products beat torch's fused attention for 16 stops, whose tiles are far
    # larger: 13.9 against 18.9 ms for the whole network on an H200.
    mixed = (qkv[0] @ qkv[1].transpose(2, 3) + addend).softmax(-1) @ qkv[2]
    return _linear(w, f"{name}.out", mixed.transpose(1, 2).reshape(pairs, width, ENCODER_WIDTH))


def _forward(torch: Any, w: Named, ids: Any, dense: Any, stops: Any, kind: Any, grid: Any, mask: Any) -> Any:
    real = mask > 0.5
    rows = (ids.remainder(w["ids.buckets"]) + w["ids.offsets"]).long()
    dense = _normalise(w, "dense", dense)
    learned = _linear(w, "dense.fields", dense).reshape(-1, DENSE_FIELDS, EMBEDDING)
    fields = torch.cat((w["ids.embedding"][rows], learned), 1)
    first = w["ids.linear"][rows].sum(1) + _linear(w, "dense.linear", dense)
    deep = _linear(w, "deep.2", _deep(w, fields.flatten(1), lambda x: x)).relu()
    stops = _normalise(w, "stops", torch.where(real[:, :, None], stops, 0.0))
    cell, kind = grid.remainder(len(w["stop.grid"])).long(), kind.remainder(STOP_TYPES).long()
    x = _linear(w, "stop.in", torch.cat((stops.half(), w["stop.grid"][cell]), 2)) + w["stop.type"][kind]
    # As large as float16 bears: the weight of a padded stop becomes 0 all the same.
    addend = torch.zeros_like(mask, dtype=torch.half).masked_fill(~real, -6e4)
    addend = addend[:, None, None, :]
    for index in range(ENCODER_LAYERS):
        name = f"encoder.{index}"
        x = x + _attention(w, name, _layer_norm(w, f"{name}.norm1", x), addend)
        x = x + _linear(w, f"{name}.down", _linear(w, f"{name}.up", _layer_norm(w, f"{name}.norm2", x)).relu())
    encoded = _layer_norm(w, "encoder.norm", x.float())
    hidden = (_linear(w, "head.stop", encoded) + (deep @ w["head.pair.w"])[:, None, :]).relu()
    pace = (first + _second_order(fields))[:, None, :]
    step = torch.nn.functional.softplus(_linear(w, "head.out", hidden) + stops @ w["head.skip.w"] + pace)
    return torch.where(real, step[:, :, 0], 0.0).cumsum(1)
