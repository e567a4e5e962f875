"""CUDA shared memory on a real card: memory of another process, through the front door into a model and back.

A process of its own owns the memory (`tests/hw/card_owner.py`, CuPy); this one registers it as a stock client does.
What can be tried without a card, with the stock client itself, is in `tests/integration/test_frontdoor_cuda.py`.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.errors import MissingDependency
from tests.hw.card_owner import Owner, digest, floats
from tests.hw.front_http import FrontHttp
from tests.hw.gpu_models import HERE, copy_models
from tests.integration.bad_node import NodeProcess, wait_until
from workers.cuda.nvml import Nvml
from workers.device import HANDLE_BYTES, OverseerError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(300),
    pytest.mark.leaks("the driver's library keeps its descriptors for the life of a process"),
]

SIZES = (1 << 10, 1 << 18, 1 << 22, 1 << 24)
"""Floats: 4 KiB, 1, 16 and 64 MiB."""
CALLS = 40
CYCLES = 200
STOCK = """
import sys
import numpy as np
import tritonclient.grpc as triton
import tritonclient.utils.cuda_shared_memory as cudashm

address, floats = sys.argv[1], int(sys.argv[2])
x = np.random.default_rng(3).random(floats, np.float32)
client = triton.InferenceServerClient(address)
regions = {name: cudashm.create_shared_memory_region(name, x.nbytes, 0) for name in ("in", "out")}
for name, region in regions.items():
    client.register_cuda_shared_memory(name, cudashm.get_raw_handle(region), 0, x.nbytes)
assert set(client.get_cuda_shared_memory_status().regions) == {"in", "out"}
given, wanted = triton.InferInput("x", [floats], "FP32"), triton.InferRequestedOutput("y")
given.set_shared_memory("in", x.nbytes)
wanted.set_shared_memory("out", x.nbytes)
for model in ("gpu_double", "gpu_there"):
    for factor in (1, 2, 3):
        cudashm.set_shared_memory_region(regions["in"], [x * factor])
        client.infer(model, [given], outputs=[wanted])
        found = cudashm.get_contents_as_numpy(regions["out"], np.float32, [floats])
        assert np.array_equal(found, 2 * x * factor), (model, factor)
client.unregister_cuda_shared_memory()
assert not client.get_cuda_shared_memory_status().regions
for region in regions.values():
    cudashm.destroy_shared_memory_region(region)
print("as ever")
"""


class Scene:
    """A node on the first card, its front door, and a process that owns memory on the card."""

    def __init__(self, folder: Path) -> None:
        copy_models(folder / "models")
        shutil.copytree(HERE / "gpu_there", folder / "models" / "gpu_there")
        (folder / "node.toml").write_text(f'runtime_dir = "{folder}"\nfrontdoor_shm_lease_s = 1.0\n')
        words = ("--config", str(folder / "node.toml"), "--frontdoor", "0")
        self.node = NodeProcess(folder, f"dir:{folder / 'registry'}", folder / "models", *words, devices="cuda:0")
        self.node.wait_ready()
        pattern = r"front door of \S+: gRPC on port (\d+), HTTP and metrics on port (\d+)"
        assert wait_until(lambda: re.search(pattern, self.node.log) is not None, 30.0), self.node.log
        self.grpc_port, http_port = map(int, re.findall(pattern, self.node.log)[-1])
        self.http = FrontHttp(http_port)
        assert wait_until(lambda: self.http.ask("models/gpu_there/ready")[0] == 200, 60.0, 0.1), self.node.log
        self.owner = Owner()

    def register(self, name: str, nbytes: int) -> None:
        status, told = self.http.register(name, self.owner.make(name, nbytes), nbytes)
        assert status == 200, (told, self.node.log)

    def check(self, model: str, count: int, seed: int) -> None:
        """Puts floats into `ins`, runs the model from there into `outs`, and has the owner look."""
        nbytes = 4 * count
        self.owner.ask("put", "ins", 256, seed, count)
        status, told = self.http.infer(model, count, ("ins", 256, nbytes), ("outs", 512, nbytes))
        assert status == 200, (told, self.node.log)
        assert self.owner.ask("sum", "outs", 512, count) == digest((2 * floats(seed, count)).tobytes())

    def close(self) -> None:
        self.http.close()
        self.owner.kill()
        self.node.end()


def time_us(call: Callable[[], tuple[int, Any]]) -> float:
    """The median of some calls."""
    taken: list[float] = []
    for _ in range(CALLS):
        began = time.perf_counter()
        assert call()[0] == 200
        taken.append(1e6 * (time.perf_counter() - began))
    return round(median(taken), 1)


@pytest.fixture(scope="module", autouse=True)
def card(report: Report) -> None:
    pytest.importorskip("cupy", reason="CuPy is not installed")
    pytest.importorskip("aiohttp", reason="the front door's extra is not installed")
    try:
        report.device = Nvml().cards()[0].model
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    made = Scene(tmp_path_factory.mktemp("shared"))
    yield made
    made.close()


def test_the_flow_of_a_stock_client(scene: Scene, report: Report) -> None:
    """Register, infer with shared input and output, status, unregister; and what it takes beside system memory."""
    most = 4 * max(SIZES) + 1024
    pids = scene.node.executors()
    for name in ("ins", "outs"):
        scene.register(name, most)
    assert {each["name"]: each["byte_size"] for each in scene.http.regions()} == {"ins": most, "outs": most}
    figures: dict[str, float] = {}
    shared = SharedMemory(create=True, size=2 * most)
    try:
        words = {"key": f"/{shared.name.lstrip('/')}", "offset": 0, "byte_size": 2 * most}
        assert scene.http.ask("systemsharedmemory/region/host/register", words)[0] == 200
        for count in SIZES:
            for model in ("gpu_double", "gpu_there"):
                for seed in range(3):
                    scene.check(model, count, seed)
            nbytes, kib = 4 * count, count >> 8
            on_card = ("ins", 0, nbytes), ("outs", 0, nbytes)
            on_host = ("host", 0, nbytes), ("host", most, nbytes)
            ways = {
                "addresses": ("gpu_there", *on_card),
                "copied": ("gpu_double", *on_card),
                "system": ("gpu_there", *on_host),
            }
            for name, (model, x, y) in ways.items():
                call = partial(scene.http.infer, model, count, x, y)
                call()
                figures[f"{name}_{kib}_kib_us"] = time_us(call)
    finally:
        scene.http.ask("systemsharedmemory/region/host/unregister", {})
        shared.close()
        shared.unlink()
    for name in ("ins", "outs"):
        scene.http.unregister(name)
        scene.owner.ask("free", name)
    assert scene.http.regions() == []
    assert scene.node.executors() == pids
    report.add("shared", calls=CALLS, **figures)


def test_handles_that_are_none_are_refused_and_break_nothing(scene: Scene, report: Report) -> None:
    pids = scene.node.executors()
    handle = scene.owner.make("sound", 1 << 16)
    bad = {
        "cut": (handle[:-1], 64, 0), "random": (os.urandom(HANDLE_BYTES), 64, 0), "zeros": (bytes(HANDLE_BYTES), 64, 0),
        "turned": (handle[::-1], 64, 0), "too large": (handle, (1 << 40), 0), "another card": (handle, 64, 63),
    }  # fmt: skip
    told: dict[str, str] = {}
    for kind, words in bad.items():
        status, answer = scene.http.register("bad", *words)
        told[kind] = f"{status} {answer.get('error', '')}"
        assert status == 400, (kind, answer)
    status, answer = scene.http.register("sound", handle, 1 << 16)
    assert status == 200, answer
    status, answer = scene.http.infer("gpu_there", 64, ("sound", (1 << 16) - 255, 256), None)
    assert status == 400, answer
    scene.http.unregister("sound")
    scene.owner.ask("free", "sound")
    status, answer = scene.http.register("sound", handle, 1 << 16)
    told["freed"] = f"{status} {answer.get('error', '')}"  # the driver's to decide
    scene.http.unregister("sound")
    assert scene.node.executors() == pids, scene.node.log
    report.add("shared_refused", **told)


def test_registering_again_and_again_keeps_nothing(scene: Scene, report: Report) -> None:
    (pid,) = scene.node.executors()

    def held() -> tuple[int, int]:
        nvml = Nvml()
        mine = [holder.nbytes for holder in nvml.holders(nvml.cards()[0].uuid) if holder.pid == pid]
        return sum(mine), len(list(Path(f"/proc/{pid}/fd").iterdir()))

    handle = scene.owner.make("again", 64 << 20)
    before = None
    for number in range(CYCLES):
        status, told = scene.http.register("again", handle, 64 << 20)
        assert status == 200, told
        assert scene.http.infer("gpu_there", 8, ("again", 0, 32), None)[0] == 200
        scene.http.unregister("again")
        if number == CYCLES // 10:
            time.sleep(0.2)
            before = held()
    time.sleep(0.2)
    after = held()
    scene.owner.ask("free", "again")
    report.add("shared_cycles", cycles=CYCLES, before=before, after=after)
    assert before is not None
    assert after[1] <= before[1] + 2
    assert after[0] <= before[0] + (2 << 20)


def test_an_owner_that_dies_costs_no_executor_and_no_wrong_answer(tmp_path: Path, report: Report) -> None:
    """Its memory is registered, in use, and not unregistered; the client that registered it lives on."""
    scene = Scene(tmp_path)
    try:
        pids = scene.node.executors()
        count = 1 << 16
        scene.register("ins", 4 * count)
        scene.owner.ask("put", "ins", 0, 7, count)
        assert scene.http.infer("gpu_there", count, ("ins", 0, 4 * count), None)[0] == 200
        scene.owner.kill()
        seen: list[str] = []
        for number in range(20):
            status, told = scene.http.infer("gpu_there", count, ("ins", 0, 4 * count), None)
            seen.append("answered" if status == 200 else f"{status} {told.get('error', '')}")
            if status == 200:
                (output,) = told["outputs"]
                assert np.array_equal(np.array(output["data"], np.float32), 2 * floats(7, count)), "a wrong answer"
            time.sleep(0.02 * (number % 3))
        scene.http.unregister("ins")
        status, told = scene.http.infer("gpu_there", 4, [1.0, 2.0, 3.0, 4.0], None)
        assert status == 200, (told, scene.node.log)
        assert told["outputs"][0]["data"] == [2.0, 4.0, 6.0, 8.0]
        survived = scene.node.executors() == pids
        report.add("shared_owner_dies", then=sorted(set(seen)), executor_survives=survived)
        assert survived, scene.node.log
    finally:
        scene.close()


def test_the_stock_client_itself(scene: Scene, report: Report) -> None:
    """Its own utility makes the memory, so its process is owner and client at the same time."""
    missing = [name for name in ("tritonclient", "rapidjson", "cuda") if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: pip install 'tritonclient[grpc,cuda]'")
    words = [sys.executable, "-c", STOCK, f"127.0.0.1:{scene.grpc_port}", str(1 << 20)]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, (ended.stderr, scene.node.log)
    report.add("shared_stock", client=ended.stdout.strip())
