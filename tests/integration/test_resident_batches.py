"""Residents of a model that batches: such requests run by themselves, beside others that run together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from router import Router
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from pathlib import Path

_CONFIG = """name: "batched" backend: "python" max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 256 ] }, { name: "z" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 256 ] } ]
dynamic_batching { max_queue_delay_microseconds: 3000 }
parameters { key: "idempotent" value { string_value: "true" } }
"""
_MODEL = """
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs): outputs["y"] = inputs["x"] + inputs["z"]
"""


def make_models(folder: Path) -> Path:
    version = folder / "batched-models" / "batched" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").write_text(_CONFIG)
    (version / "model.py").write_text(_MODEL)
    return version.parent.parent


def ask(router: Router, x: object, value: float, z: float) -> bool:
    with router.infer("batched", {"x": x, "z": np.full((2, 1), z, np.float32)}, timeout_s=20.0) as reply:
        return bool((reply["y"] == value + z).all()) and reply["y"].shape == (2, 256)


def test_requests_with_and_without_residents_at_once_get_their_own_answers(tmp_path: Path) -> None:
    arrays = [np.full((2, 256), number, np.float32) for number in range(4)]
    with Nodes(tmp_path) as nodes:
        nodes.models = make_models(tmp_path)
        nodes.start("one", devices="cpu:2")
        nodes.wait_ready("one")
        with Router.connect(nodes.registry) as router:
            kept = [router.resident(array) for array in arrays]
            given = [(kept if number % 3 else arrays)[number % 4] for number in range(200)]
            with ThreadPoolExecutor(16) as pool:
                values = [float(number % 4) for number in range(200)]
                right = list(pool.map(ask, [router] * 200, given, values, map(float, range(200))))
            assert all(right)
            assert router.statistics().residents_sent >= 4
        del router, kept, given
        settle()
