"""Backends on a real card: torch's two forms of a file, and plans that TensorRT must refuse without harm."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import MissingDependency, ModelBroken
from workers.backends.base import Declared, Inputs, Outputs
from workers.backends.tensorrt import TensorRtModel, import_tensorrt
from workers.backends.torch import TorchModel
from workers.cuda.nvml import Nvml
from workers.device import OverseerError
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hw.conftest import Report
    from workers.modelconfig import ModelConfig

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(300),
    pytest.mark.leaks("CUDA keeps its threads and descriptors for the life of a process"),
    pytest.mark.filterwarnings("ignore"),  # torch and its exporter warn about their own futures
]

CONFIG = """
backend: "{backend}"
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }}, {{ name: "n" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }}, {{ name: "m" data_type: TYPE_INT32 dims: [ -1 ] }} ]
"""


@pytest.fixture(scope="module", autouse=True)
def card(report: Report) -> None:
    try:
        report.device = Nvml().cards()[0].model
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))


def config(folder: Path, backend: str) -> ModelConfig:
    return read_config(CONFIG.format(backend=backend), "config.pbtxt", "m", "1", str(folder))


@pytest.mark.parametrize("form", ["model.pt2", "model.pt"])
@pytest.mark.parametrize("on_gpu", [False, True])
def test_torch_files(tmp_path: Path, form: str, on_gpu: bool) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Net(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

        def forward(self, x, n):  # type: ignore[no-untyped-def]
            return x * self.scale + n[:, None].to(x.dtype), n + 1

    given = (torch.ones(3, 4), torch.arange(3, dtype=torch.int32))
    if form == "model.pt2":
        batch = torch.export.Dim("batch", min=1, max=1 << 20)
        torch.export.save(torch.export.export(Net(), given, dynamic_shapes=({0: batch}, {0: batch})), tmp_path / form)
    else:
        torch.jit.script(Net()).save(str(tmp_path / form))
    settings = config(tmp_path, "torch")
    model = TorchModel(settings, 1, on_gpu=on_gpu)
    assert model.warm_up()
    for rows in (2, 1000):
        x, n = np.random.default_rng(rows).random((rows, 4), np.float32), np.arange(rows, dtype=np.int32)
        x.flags.writeable = False
        outputs = Outputs(Declared("m", settings.outputs), memoryview(bytearray(1 << 16)))
        model.execute(Inputs({"x": x, "n": n}), outputs)
        layout, aside = outputs.finish()
        assert aside is None
        memory = outputs._memory
        y = np.frombuffer(memory[: layout.specs[0].nbytes], np.float32).reshape(rows, 4)
        assert np.allclose(y, x * np.array([1, 2, 3, 4], np.float32) + n[:, None])
        at = layout.offsets[1]
        assert np.array_equal(np.frombuffer(memory[at : at + 4 * rows], np.int32), n + 1)


def test_a_torch_file_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "model.pt").write_bytes(b"PK no archive")
    with pytest.raises(ModelBroken, match=r"model\.pt cannot be loaded"):
        TorchModel(config(tmp_path, "torch"), 1, on_gpu=True)


PLANS = {
    "foreign": b"this is no engine at all " * 40,
    "zeros": bytes(4096),
    "magic only": b"ftrt" + bytes(4096),
    "other version": b"ptrt" + (8).to_bytes(4, "little") * 400,
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_that_is_none_is_refused_with_a_reason(tmp_path: Path, kind: str, report: Report) -> None:
    try:
        trt = import_tensorrt("m")
    except MissingDependency as reason:
        pytest.skip(str(reason))
    (tmp_path / "model.plan").write_bytes(PLANS[kind])
    with pytest.raises(ModelBroken, match=r"does not take model\.plan") as caught:
        TensorRtModel(config(tmp_path, "tensorrt"), on_gpu=True)
    report.add("tensorrt", version=trt.__version__, **{f"refuses_{kind.replace(' ', '_')}": str(caught.value)})


def test_a_cut_plan_is_refused_before_the_library_sees_it(tmp_path: Path) -> None:
    try:
        import_tensorrt("m")
    except MissingDependency as reason:
        pytest.skip(str(reason))
    (tmp_path / "model.plan").write_bytes(b"ftrt")
    with pytest.raises(ModelBroken, match="which is no engine"):
        TensorRtModel(config(tmp_path, "tensorrt"), on_gpu=True)


def test_after_a_refused_plan_the_context_is_whole() -> None:
    script = "from workers.cuda.driver import CudaDevice; d = CudaDevice(); d.probe(); print('whole')"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, env=dict(os.environ), check=False
    )
    assert ended.stdout.strip() == "whole", ended.stderr
