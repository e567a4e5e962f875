"""Half precision on a GPU, as far as it can be told without one: what is said when torch or a GPU is missing."""

from __future__ import annotations

import importlib.util

import pytest

from examples.dispatch.etr.modelfile import read_weights, shipped
from examples.dispatch.etr.network import BASE
from examples.dispatch.etr.torch_gpu import HALF, HalfEtr, TorchMissing


def test_without_torch_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = read_weights(BASE, shipped("etr"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TorchMissing, match="pip install torch"):
        HalfEtr(weights)


def test_what_is_halved_is_the_encoder_over_stops() -> None:
    halved = {parameter.name for parameter in BASE.parameters if parameter.name.startswith(HALF)}
    assert {"encoder.0.qkv.w", "encoder.1.down.b", "stop.in.w", "stop.grid"} <= halved
    assert not [
        name for name in halved if name.startswith(("norm.", "head.", "deep.", "ids.", "dense.", "encoder.norm"))
    ]
