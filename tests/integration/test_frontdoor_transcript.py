"""R1: the conversation that was held with Triton itself, and its answers: codes, names, shapes, bytes, counts, states.

What differs on purpose stands in a table, with the reason. Read `tests/integration/triton_script.py` for what is said.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2 as pb

from tests.integration.frontdoors import running_front, wait_serving
from tests.integration.triton_requests import LOADED, write_models
from tests.integration.triton_script import hold

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("triton_transcript.json").read_text())["said"]
MODEL = """
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        if "a" in inputs:
            a, b = inputs["a"], inputs["b"]
            if a[0] < 0: raise KeyError("negative")
            outputs["sum"], outputs["difference"] = a + b, a - b
        else:
            x = inputs["x"]
            outputs["y"] = x * 2 if x.dtype == "float32" else x
"""
OURS: dict[str, tuple[Any, str]] = {
    "ModelConfig: spare": (["UNAVAILABLE", None], "it is in the repository, and not loaded"),
    "ModelMetadata: spare": (["UNAVAILABLE", None], "the same"),
    "RepositoryModelLoad: unknown": (["NOT_FOUND", None], "there is none, and nothing went wrong inside"),
    "SystemSharedMemoryRegister: longer than it is": (["INVALID_ARGUMENT", None], "so do later releases of Triton"),
    "CudaSharedMemoryRegister: without a GPU": (["UNIMPLEMENTED", None], "the call is not served at all"),
    "ModelInfer: outputs in another order": (
        [
            "OK",
            [
                "pair", "1", "", [["difference", "FP32", [2]], ["sum", "FP32", [2]]],
                ["000000c0000000c0", "000080400000c040"],
            ],
        ],
        "outputs come in the order that they were asked for, not in that of the model",
    ),
    "SystemSharedMemoryRegister: a part of it": (["OK", None], "the same memory may be known by two names"),
    "SystemSharedMemoryStatus: all": (
        ["OK", [["part", "/osp_transcript", 0, 64], ["r", "/osp_transcript", 0, 4096]]],
        "that one too",
    ),
    "SystemSharedMemoryStatus: one": (["OK", [["part", "/osp_transcript", 0, 64]]], "the same"),
    "ModelStatistics": (
        {"batch": [3, 2, 2, 2], "pair": [8, 8, 8, 6], "text": [2, 2, 2, 1]},
        "a request that failed is no success, and one that was refused counts as failed",
    ),
}  # fmt: skip
"""What we say in place of Triton, and why."""


def test_what_is_said_is_what_triton_said(tmp_path: Path) -> None:
    write_models(tmp_path / "models", MODEL)
    words = ("--model-control", "explicit", *(word for model in LOADED for word in ("--load-model", model)))
    with running_front(tmp_path, tmp_path / "models", *words) as front:
        wait_serving(front, *LOADED)
        said = hold(front.grpc)
    called = {what.partition(":")[0] for what in said}
    assert called >= {method.name for method in pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods}
    expected = RECORDED | {what: answer for what, (answer, _) in OURS.items()}
    assert said.keys() == expected.keys()
    assert {what: said[what] for what in said if said[what] != expected[what]} == {}


def test_no_difference_is_listed_that_is_none() -> None:
    assert [what for what, (answer, _) in OURS.items() if RECORDED[what] == answer] == []
