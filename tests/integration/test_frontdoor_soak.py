"""A week of a node in an hour, or a share of it: random requests, regions that come and go, clients that are killed,
models that are loaded, fail to load and are unloaded, on a fake card.

Memory, descriptors, threads, regions and the card's bytes are where they were afterwards. The whole week is
`OVERSPILL_SOAK_REQUESTS=1000000 make test-long ARGS=tests/integration/test_frontdoor_soak.py`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, shared_memory

from frontdoor.copiers import COPIERS
from tests.integration.frontdoors import (
    code,
    config,
    front_models,
    given,
    goes,
    grpc_client,
    http_client,
    lies,
    region,
    running_front,
)
from tests.integration.nodes import CONFIG, ROOT, wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.integration.frontdoors import Front

pytestmark = pytest.mark.long

REGION = 8 << 20
LARGE_EVERY = 50
"""One in so many requests is of 1.1 to 4 MiB, which other processes copy."""
REQUESTS = int(os.environ.get("OVERSPILL_SOAK_REQUESTS", "18000"))
CALLERS = int(os.environ.get("OVERSPILL_SOAK_CALLERS", "4"))
"""More of them get more of a machine that is busy with other work."""
HEAVY = """
import numpy as np
class Model:
    def __init__(self, config):
        self.weights = np.ones(1 << 20)
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"]
"""
CLIENT = """
import sys, time
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import shared_memory
client = triton.InferenceServerClient(sys.argv[1])
for n in range(10):
    shared_memory.create_shared_memory_region(f"r{n}", f"/osp_soak_{sys.argv[2]}_{n}", 4096)
    client.register_system_shared_memory(f"soak {sys.argv[2]} {n}", f"/osp_soak_{sys.argv[2]}_{n}", 4096)
x = triton.InferInput("x", [2], "INT64")
x.set_data_from_numpy(np.array([4, 50]))
for _ in range(20):
    client.async_infer("rough", [x], lambda result, error: None)
print("out", flush=True)
time.sleep(600)
"""


def own_bytes(pid: int) -> int:
    """Without what it shares: of arenas and regions as much is resident as was ever used."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon:"))) * 1024


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def a_share(front: Front, seed: int, requests: int) -> None:
    """One client's part: raw and shared, good and bad, of sizes drawn log-uniformly; each value checked."""
    dice = random.Random(seed)
    name = f"soak{os.getpid()}_{seed}"  # keys are the machine's: another soak may run beside this one
    with grpc_client(front.grpc) as client, region(client, name, REGION) as handle:
        for number in range(requests):
            size = int(2 ** (dice.uniform(0, 17) if number % LARGE_EVERY else dice.uniform(18.1, 20)))
            x = np.full(size, number, np.float32)
            way = dice.randrange(4)
            if way & 1:
                shared_memory.set_shared_memory_region(handle, [x])
            inputs = [lies("x", [size], "FP32", name, x.nbytes)] if way & 1 else [given("x", x)]
            outputs = [goes("y", name, x.nbytes, REGION // 2)] if way & 2 else None
            result = client.infer("echo_FP32", inputs, outputs=outputs)
            lies_there = shared_memory.get_contents_as_numpy(handle, np.float32, [size], REGION // 2)
            np.testing.assert_array_equal(lies_there if way & 2 else result.as_numpy("y"), x)
            if not number % 20:
                assert code(partial(client.infer, "nobody", inputs)) == "NOT_FOUND"
            if not number % 50:
                client.unregister_system_shared_memory(name)
                client.register_system_shared_memory(name, f"/osp_test_{name}", REGION)


@dataclass(frozen=True, slots=True)
class Day:
    """What happens in one stretch."""

    seed: int
    requests: int
    kills: int
    loads: int


def a_day(front: Front, day: Day) -> None:
    """Everything at the same time."""
    each = max(1, day.requests // CALLERS)
    workers = [Worker(a_share, front, day.seed + number, each) for number in range(CALLERS)]
    workers.append(Worker(come_and_go, front, day.loads))
    for worker in workers:
        worker.start()
    for number in range(day.kills):
        kill_one(front, f"{os.getpid()}-{day.seed}-{number}")
    for number in range(50):
        with http_client(front.http) as client:
            assert client.is_server_ready(), number
    for worker in workers:
        worker.join()
        if worker.error is not None:
            raise worker.error


class Worker(threading.Thread):
    """A thread whose failure is kept."""

    def __init__(self, work: Callable[..., None], *arguments: object) -> None:
        super().__init__()
        self._work = partial(work, *arguments)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - whoever joins raises it
            self.error = error


def kill_one(front: Front, name: str) -> None:
    """A client that holds ten regions and has twenty requests out ends without a word."""
    command = [sys.executable, "-c", CLIENT, front.grpc, name]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    assert process.stdout.readline() == b"out\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    wait_until(lambda: gone(front, name), 30)
    for number in range(10):
        Path(f"/dev/shm/osp_soak_{name}_{number}").unlink(missing_ok=True)


def come_and_go(front: Front, times: int) -> None:
    """Loads and unloads, and as many loads that fail."""
    with grpc_client(front.grpc) as client:
        for _ in range(times):
            client.load_model("heavy")
            assert code(partial(client.load_model, "broken")) != "OK"
            client.unload_model("heavy")


def gone(front: Front, name: str) -> bool:
    with grpc_client(front.grpc) as client:
        try:
            regions: Any = client.get_system_shared_memory_status().regions
        except InferenceServerException:
            return False
    return not any(each.startswith(f"soak {name} ") for each in regions)


def card_bytes(front: Front) -> int:
    page = urllib.request.urlopen(f"http://{front.http}/metrics", timeout=10).read().decode()
    return int(float(next(line.split()[-1] for line in page.splitlines() if line.startswith("nv_gpu_memory_used_by"))))


def measured(front: Front) -> dict[str, tuple[int, int, int]]:
    """(bytes of its own, open files, threads) of the node, its front door, its executor, and the copiers together."""
    (executor,) = front.node.children()
    pids = {"node": front.node.process.pid, "front door": front.pid, "executor": executor}
    seen = {name: (own_bytes(pid), open_files(pid), threads(pid)) for name, pid in pids.items()}
    copiers = [
        int(pid) for each in Path(f"/proc/{front.pid}/task").glob("*/children") for pid in each.read_text().split()
    ]
    assert len(copiers) == COPIERS
    seen["copiers"] = sum(map(own_bytes, copiers)), sum(map(open_files, copiers)), sum(map(threads, copiers))
    return seen


@pytest.fixture
def soaked(tmp_path: Path) -> Iterator[Front]:
    models = front_models(tmp_path)
    write_model(models, "heavy", HEAVY, config({"x": "-1"}, {"y": "-1"}, "FP32"))
    write_model(models, "broken", "import numpy\nweights = numpy.ones(1 << 20)\n1 / 0", CONFIG)
    (tmp_path / "node.toml").write_text(f'frontdoor_shm_lease_s = 1.0\nruntime_dir = "{tmp_path}"\n')
    words = ["--devices", "fake:1", "--model-control", "explicit", "--config", str(tmp_path / "node.toml")]
    for name in ("echo_FP32", "rough"):
        words += ["--load-model", name]
    with running_front(tmp_path, models, *words) as front:
        yield front


@pytest.mark.timeout(7200)
def test_nothing_grows(soaked: Front) -> None:
    front, share = soaked, REQUESTS / 1_000_000
    a_day(front, Day(100, max(2000, REQUESTS // 20), 3, 10))  # whatever grows once has grown then
    before, used = measured(front), card_bytes(front)
    days, seen = 3, [before]
    for day in range(days):
        kills, loads = max(1, round(50 * share / days)), max(3, round(200 * share / days))
        a_day(front, Day(1000 * (day + 1), REQUESTS // days, kills, loads))
        seen.append(measured(front))
    wait_until(lambda: all(measured(front)[name][1] <= files + 4 for name, (_, files, _) in before.items()), 30)
    after = measured(front)
    for name in before:  # for -rP
        rows = (
            f"{nbytes / 1e6:.1f} MB, {files} descriptors, {threads} threads"
            for nbytes, files, threads in (each[name] for each in (*seen, after))
        )
        sys.stdout.write(f"{name}: {'; '.join(rows)}\n")
    for name, (bytes_before, _, threads_before) in before.items():
        assert after[name][2] <= threads_before + 8, f"{name}: pools may fill to their bound, and no further"
        # What malloc keeps of large messages varies by some tens of MiB; 18,000 requests that leak 4 KiB are 72 MiB.
        assert after[name][0] < bytes_before + (64 << 20), (name, seen)
    assert card_bytes(front) == used
    with grpc_client(front.grpc) as client:
        assert not client.get_system_shared_memory_status().regions
