"""A long day of a front door in some minutes: random requests, regions that come and go, clients that are killed.

Memory, descriptors, regions and threads are where they were afterwards.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.integration.frontdoors import code, given, goes, grpc_client, http_client, lies, region
from tests.integration.nodes import ROOT, wait_until

if TYPE_CHECKING:
    from tests.integration.frontdoors import Front

pytestmark = pytest.mark.long

REGION = 1 << 20
CLIENT = """
import sys, time
import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import shared_memory
client = triton.InferenceServerClient(sys.argv[1])
for n in range(10):
    shared_memory.create_shared_memory_region(f"r{n}", f"/osp_soak_{n}", 4096)
    client.register_system_shared_memory(f"soak {sys.argv[2]} {n}", f"/osp_soak_{n}", 4096)
x = triton.InferInput("x", [2], "INT64")
x.set_data_from_numpy(np.array([4, 50]))
for _ in range(20):
    client.async_infer("rough", [x], lambda result, error: None)
print("out", flush=True)
time.sleep(600)
"""


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def a_share(front: Front, seed: int, requests: int) -> None:
    """One client's part: raw and shared, good and bad, of sizes drawn log-uniformly."""
    dice = random.Random(seed)
    name = f"soak{seed}"
    with grpc_client(front.grpc) as client, region(client, name, REGION):
        for number in range(requests):
            size = int(2 ** dice.uniform(0, 17))
            x = np.full(size, number, np.float32)
            way = dice.randrange(4)
            inputs = [lies("x", [size], "FP32", name, x.nbytes)] if way & 1 else [given("x", x)]
            outputs = [goes("y", name, x.nbytes, REGION // 2)] if way & 2 else None
            result = client.infer("echo_FP32", inputs, outputs=outputs)
            if not way:
                np.testing.assert_array_equal(result.as_numpy("y"), x)
            if not number % 20:
                assert code(partial(client.infer, "nobody", inputs)) == "NOT_FOUND"
            if not number % 50:
                client.unregister_system_shared_memory(name)
                client.register_system_shared_memory(name, f"/osp_test_{name}", REGION)


def a_day(front: Front, seed: int, requests: int) -> None:
    workers = [threading.Thread(target=a_share, args=(front, seed + n, requests)) for n in range(4)]
    for worker in workers:
        worker.start()
    for _ in range(3):
        command = [sys.executable, "-c", CLIENT, front.grpc, str(seed)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdout.readline() == b"out\n"
        process.send_signal(signal.SIGKILL)
        process.communicate()
        wait_until(lambda: gone(front, seed), 20)
    for number in range(50):
        with http_client(front.http) as client:
            assert client.is_server_ready(), number
    for worker in workers:
        worker.join()
    for number in range(10):
        Path(f"/dev/shm/osp_soak_{number}").unlink(missing_ok=True)


def gone(front: Front, seed: int) -> bool:
    with grpc_client(front.grpc) as client:
        try:
            regions: Any = client.get_system_shared_memory_status().regions
        except InferenceServerException:
            return False
    return not any(name.startswith(f"soak {seed} ") for name in regions)


def test_nothing_grows(front: Front) -> None:
    pid = front.pid
    a_day(front, 100, 300)  # whatever grows once has grown then
    before = resident_bytes(pid), open_files(pid), threads(pid)
    for seed in (200, 300, 400):
        a_day(front, seed, 1500)
    assert front.pid == pid
    wait_until(lambda: open_files(pid) <= before[1] + 4, 30)
    assert threads(pid) <= before[2] + 8, "pools may fill to their bound, and no further"
    # What malloc keeps of large messages varies by some tens of MiB; 18,000 requests that leak 4 KiB each are 72 MiB.
    assert resident_bytes(pid) < before[0] + (64 << 20)
