"""CUDA graphs on a real card: replays equal ordinary runs, what cannot be recorded runs as ever, and what it gains.

Models whose kernels are small and many, as a network for one rider is, wait for the launching of each.
"""

from __future__ import annotations

import shutil
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.errors import MissingDependency
from overspill import Router
from tests.hw.gpu_models import HERE
from tests.integration.bad_node import NodeProcess
from workers.backends.base import Declared, Inputs, Outputs
from workers.backends.choose import open_backend
from workers.backends.torch import TorchModel
from workers.cuda.nvml import Nvml
from workers.cuda.queue import CudaQueue
from workers.device import OverseerError
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

    from tests.hw.conftest import Report
    from workers.backends.base import Backend
    from workers.modelconfig import ModelConfig

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(300),
    pytest.mark.leaks("CUDA keeps its threads and descriptors for the life of a process"),
    pytest.mark.filterwarnings("ignore"),  # torch and its exporter warn about their own futures
]

CONFIG = """
backend: "{backend}"
input [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1, 64 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1, 64 ] }} ]
optimization {{ cuda {{ graphs: {graphs} }} }}
"""
LAYERS = 64
CALLS = 200
ROWS = 8


@pytest.fixture(scope="module", autouse=True)
def card(report: Report) -> None:
    try:
        report.device = Nvml().cards()[0].model
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))


def config(folder: Path, backend: str, *, graphs: bool) -> ModelConfig:
    text = CONFIG.format(backend=backend, graphs=str(graphs).lower())
    return read_config(text, "config.pbtxt", "m", "1", str(folder))


def run(model: Backend, settings: ModelConfig, x: np.ndarray[Any, Any]) -> bytes:
    """One request from a slot into a slot; the bytes of its answer."""
    memory = memoryview(bytearray(x.nbytes + 4096))
    outputs = Outputs(Declared("m", settings.outputs), memory)
    x.flags.writeable = False
    model.execute(Inputs({"x": x}), outputs)
    layout, aside = outputs.finish()
    assert aside is None
    return bytes(memory[: layout.specs[0].nbytes])


def deep(folder: Path) -> None:
    """A network of many small layers, as torch exports it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    torch.manual_seed(5)
    layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(64, 64), torch.nn.ReLU())]
    net = torch.nn.Sequential(*layers).eval()
    batch = torch.export.Dim("batch", min=1, max=1 << 16)
    exported = torch.export.export(net, (torch.ones(3, 64),), dynamic_shapes=({0: batch},))
    torch.export.save(exported, folder / "model.pt2")


def times_us(model: Backend, settings: ModelConfig, x: np.ndarray[Any, Any]) -> float:
    taken: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        run(model, settings, x)
        taken.append(1e6 * (time.perf_counter() - began))
    return round(median(taken), 1)


def test_a_torch_network_replayed_equals_itself_and_gains(tmp_path: Path, report: Report) -> None:
    deep(tmp_path)
    plain_settings, settings = (config(tmp_path, "torch", graphs=graphs) for graphs in (False, True))
    plain, model = TorchModel(plain_settings, 1, on_gpu=True), TorchModel(settings, 1, on_gpu=True)
    assert plain.warm_up()
    assert model.warm_up()
    draw = np.random.default_rng(1)
    for number in range(12):
        x = draw.random((ROWS, 64) if number % 3 else (1 + number, 64), np.float32)
        wanted = run(plain, plain_settings, x.copy())
        for _ in range(3):  # ordinary, recorded, replayed
            assert run(model, settings, x.copy()) == wanted, number
    assert model._graphs is not None
    assert model._graphs.failed == ""
    assert len(model._graphs) >= 4
    x = draw.random((ROWS, 64), np.float32)
    before_us, with_us = times_us(plain, plain_settings, x), times_us(model, settings, x)
    report.add("graphs", torch_layers=LAYERS, torch_ordinary_us=before_us, torch_graph_us=with_us)
    assert with_us < before_us


def test_a_network_that_asks_for_a_value_runs_without(
    tmp_path: Path, report: Report, caplog: pytest.LogCaptureFixture
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")

    class Asking(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x):  # type: ignore[no-untyped-def]
            if float(x.sum()) > 0.0:
                return x * 2
            return x

    torch.jit.script(Asking()).save(str(tmp_path / "model.pt"))
    settings = config(tmp_path, "torch", graphs=True)
    model = TorchModel(settings, 1, on_gpu=True)
    for sign in (1, -1, 1, -1, 1):
        x = np.full((4, 64), sign, np.float32)
        assert run(model, settings, x.copy()) == (x * 2 if sign > 0 else x).tobytes()
    told = [message for message in caplog.messages if "without CUDA graphs" in message]
    assert len(told) == 1, caplog.messages
    assert model._graphs is not None
    assert len(model._graphs) == 0
    # The context is as it was: a network that can be recorded is.
    (tmp_path / "deep").mkdir()
    deep(tmp_path / "deep")
    settings = config(tmp_path / "deep", "torch", graphs=True)
    other = TorchModel(settings, 1, on_gpu=True)
    for _ in range(3):
        run(other, settings, np.ones((2, 64), np.float32))
    assert other._graphs is not None
    assert len(other._graphs) == 1
    report.add("graphs", cannot_be_recorded=told[0])


def test_a_python_model_of_launches_replayed_equals_itself_and_gains(tmp_path: Path, report: Report) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    shutil.copy(HERE / "gpu_there" / "1" / "model.py", tmp_path / "model.py")
    plain_settings, settings = (config(tmp_path, "python", graphs=graphs) for graphs in (False, True))
    plain, model = open_backend(plain_settings, 1, on_gpu=True), open_backend(settings, 1, on_gpu=True)
    assert plain.warm_up()
    assert model.warm_up()
    draw = np.random.default_rng(2)
    for rows in (1, 8, 300, 8, 5):
        for _ in range(3):
            x = draw.random((rows, 64), np.float32)
            assert run(model, settings, x.copy()) == run(plain, plain_settings, x.copy()) == (2 * x).tobytes()
    x = draw.random((ROWS, 64), np.float32)
    before_us, with_us = times_us(plain, plain_settings, x), times_us(model, settings, x)
    report.add("graphs", cupy_launches=64, cupy_ordinary_us=before_us, cupy_graph_us=with_us)
    assert with_us < before_us


def test_a_stream_of_the_driver_records_and_replays(report: Report) -> None:
    """What the backend of TensorRT does, without an engine: a copy that is recorded reads what lies there when it is
    replayed."""
    queue = CudaQueue()
    try:
        x, y = np.arange(1024, dtype=np.float32), np.zeros(1024, np.float32)
        source, target = queue.bring("x", x), queue.room("y", x.nbytes)
        queue.settle()
        graph = queue.record(lambda: queue.copy(target, source, x.nbytes))
        for factor in (1, 3):
            queue.bring("x", np.ascontiguousarray(x * factor))
            queue.settle()
            queue.replay(graph)
            queue.fetch("y", y)
            queue.settle()
            assert np.array_equal(y, x * factor)
        queue.forget(graph)
    finally:
        queue.close()
    report.add("graphs", driver="recorded and replayed")


def test_requests_through_a_node_are_replayed(tmp_path: Path) -> None:
    """From the slots that they landed in; sizes change, and each answer is the caller's own."""
    pytest.importorskip("cupy", reason="CuPy is not installed")
    shutil.copytree(HERE / "gpu_there", tmp_path / "models" / "gpu_there")
    (tmp_path / "node.toml").write_text(f'runtime_dir = "{tmp_path}"\n')
    registry = f"dir:{tmp_path / 'registry'}"
    words = ("--config", str(tmp_path / "node.toml"))
    with NodeProcess(tmp_path, registry, tmp_path / "models", *words, devices="cuda:0") as node:
        node.wait_ready()
        draw = np.random.default_rng(3)
        with Router.connect(registry) as router:
            for count in (64, 1 << 20, 64, 1000, 1 << 20, 64, 1000, 1000, 1 << 20):
                x = draw.random(count, np.float32)
                with router.infer("gpu_there", {"x": x}, timeout_s=30.0) as reply:
                    assert np.array_equal(reply["y"], 2 * x)
        assert "without CUDA graphs" not in node.log, node.log
