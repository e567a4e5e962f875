"""Both networks in torch, for training only: the same names and the same order of operations as `reference.py`.

Plain functions over named tensors, no modules: what is trained is what `network.py` lists. Torch is imported when the
first function runs, and nothing that serves requests imports this file. Next: `train.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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
    NetSpec,
    Weights,
)

if TYPE_CHECKING:
    from examples.dispatch.etr.deliveries import MiniInputs
    from examples.dispatch.etr.features import EtrInputs

Named = Mapping[str, Any]  # parameter name to torch tensor


def initial(spec: NetSpec, fixed: Mapping[str, Array], seed: int) -> dict[str, Any]:
    """Starting tensors: small embeddings, He-scaled matrices, zero biases; `fixed` gives what is not trained."""
    import torch

    rng = np.random.default_rng(seed)
    named: dict[str, Any] = {}
    for parameter in spec.parameters:
        name, shape = parameter.name, parameter.shape
        if name in fixed:
            values = np.asarray(fixed[name])
        elif name.endswith((".b", "ids.linear")):
            values = np.zeros(shape)
        elif name.endswith(".g"):
            values = np.ones(shape)
        elif name.endswith((".embedding", "stop.grid", "stop.type")):
            values = rng.normal(0.0, 0.02, shape)
        else:
            values = rng.normal(0.0, np.sqrt(2.0 / shape[0]), shape)
            if name.endswith(("head.out.w", "head.skip.w", "linear.w", ".out.w", ".down.w", "dense.fields.w")):
                values = values * 0.1  # residual branches, outputs and second order start near nothing
            if name.endswith(".qkv.w"):
                values = values * np.sqrt(0.5)
                values[:, :ENCODER_WIDTH] /= np.sqrt(ENCODER_WIDTH / ENCODER_HEADS)  # the attention's 1/sqrt(d)
        named[name] = torch.tensor(values.astype(parameter.dtype), requires_grad=parameter.trained)
    return named


def from_weights(weights: Weights) -> dict[str, Any]:
    """The same numbers as torch tensors that need no gradient."""
    import torch

    pairs = zip(weights.spec.parameters, weights.arrays, strict=True)
    return {parameter.name: torch.from_numpy(array.copy()) for parameter, array in pairs}


def to_weights(spec: NetSpec, named: Named) -> Weights:
    """Trained tensors as weights."""
    return Weights.of(spec, [(name, tensor.detach().numpy()) for name, tensor in named.items()])


def _linear(w: Named, name: str, x: Any) -> Any:
    return x @ w[f"{name}.w"] + w[f"{name}.b"]


def _layer_norm(w: Named, name: str, x: Any) -> Any:
    from torch.nn.functional import layer_norm

    return layer_norm(x, (x.shape[-1],), w[f"{name}.g"], w[f"{name}.b"], 1e-5)


def _normalise(w: Named, name: str, x: Any) -> Any:
    return ((x - w[f"norm.{name}.mean"]) * w[f"norm.{name}.scale"]).clamp(-NORMALISED_MAX, NORMALISED_MAX)


def _second_order(fields: Any) -> Any:
    total = fields.sum(1)
    return 0.5 * (total * total - (fields * fields).sum(1)).sum(1, keepdim=True)


def _deep(w: Named, x: Any, drop: Callable[[Any], Any]) -> Any:
    return drop(_linear(w, "deep.1", drop(_linear(w, "deep.0", x).relu())).relu())


def _keep(x: Any) -> Any:
    return x


def mini_forward(w: Named, inputs: MiniInputs, drop: Callable[[Any], Any] = _keep) -> Any:
    """Minutes from order to receipt, [N]. `drop` is the dropout to apply to hidden layers while training."""
    import torch

    rows = (torch.from_numpy(inputs.ids).remainder(w["ids.buckets"]) + w["ids.offsets"]).long()
    dense = _normalise(w, "dense", torch.from_numpy(inputs.dense))
    fields = torch.cat((w["ids.embedding"][rows], dense[:, :, None] * w["dense.embedding"]), 1)
    first = w["ids.linear"][rows].sum(1) + _linear(w, "dense.linear", dense)
    deep = _linear(w, "deep.2", _deep(w, fields.flatten(1), drop))
    return torch.nn.functional.softplus(first + _second_order(fields) + deep)[:, 0]


def _attention(w: Named, name: str, x: Any, addend: Any) -> Any:
    pairs, width, _ = x.shape
    head = ENCODER_WIDTH // ENCODER_HEADS
    qkv = _linear(w, f"{name}.qkv", x).reshape(pairs, width, 3, ENCODER_HEADS, head).permute(2, 0, 3, 1, 4)
    mixed = (qkv[0] @ qkv[1].transpose(2, 3) + addend).softmax(-1) @ qkv[2]
    return _linear(w, f"{name}.out", mixed.transpose(1, 2).reshape(pairs, width, ENCODER_WIDTH))


def etr_forward(w: Named, inputs: EtrInputs, drop: Callable[[Any], Any] = _keep) -> Any:
    """Minutes from now until each stop, [B, L]."""
    import torch

    softplus = torch.nn.functional.softplus
    real = torch.from_numpy(inputs.mask) > 0.5
    rows = (torch.from_numpy(inputs.ids).remainder(w["ids.buckets"]) + w["ids.offsets"]).long()
    dense = _normalise(w, "dense", torch.from_numpy(inputs.dense))
    learned = _linear(w, "dense.fields", dense).reshape(-1, DENSE_FIELDS, EMBEDDING)
    fields = torch.cat((w["ids.embedding"][rows], learned), 1)
    first = w["ids.linear"][rows].sum(1) + _linear(w, "dense.linear", dense)
    deep = _linear(w, "deep.2", _deep(w, fields.flatten(1), drop)).relu()

    stops = _normalise(w, "stops", torch.where(real[:, :, None], torch.from_numpy(inputs.stops), 0.0))
    cell = torch.from_numpy(inputs.stop_grid).remainder(len(w["stop.grid"])).long()
    kind = torch.from_numpy(inputs.stop_type).remainder(STOP_TYPES).long()
    x = _linear(w, "stop.in", torch.cat((stops, w["stop.grid"][cell]), 2)) + w["stop.type"][kind]
    addend = torch.where(real, 0.0, MASK_ADDEND)[:, None, None, :]
    for index in range(ENCODER_LAYERS):
        name = f"encoder.{index}"
        x = x + _attention(w, name, _layer_norm(w, f"{name}.norm1", x), addend)
        x = x + _linear(w, f"{name}.down", _linear(w, f"{name}.up", _layer_norm(w, f"{name}.norm2", x)).relu())
    hidden = (_linear(w, "head.stop", _layer_norm(w, "encoder.norm", x)) + (deep @ w["head.pair.w"])[:, None, :]).relu()
    pace = (first + _second_order(fields))[:, None, :]
    step = softplus(_linear(w, "head.out", hidden) + stops @ w["head.skip.w"] + pace)[:, :, 0]
    return torch.where(real, step, 0.0).cumsum(1)
