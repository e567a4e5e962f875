"""Hostile and unlucky users of shared memory: truncation at any moment, leaks, killed clients, strangers."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tritonclient.utils import shared_memory

from tests.integration.frontdoors import REGION, SLEEP, Front, code, given, goes, grpc_client, lies, region
from tests.integration.nodes import ROOT, open_files, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CLIENT = """
import sys, time
import tritonclient.grpc as triton
from tritonclient.utils import shared_memory
client = triton.InferenceServerClient(sys.argv[1])
handles = [shared_memory.create_shared_memory_region(f"r{n}", f"/osp_killed_{n}", 4096) for n in range(50)]
for n in range(50):
    client.register_system_shared_memory(f"killed {n}", f"/osp_killed_{n}", 4096)
print("registered", flush=True)
time.sleep(600)
"""
LARGE = 8 << 20
"""Of a region whose halves are moved at the same time."""


@pytest.fixture
def client(front: Front) -> Iterator[Any]:
    with grpc_client(front.grpc) as client:
        yield client
        client.unregister_system_shared_memory()


def test_failed_registrations_leave_nothing_open(front: Front, client: Any) -> None:
    def open_files() -> int:
        return len(list(Path(f"/proc/{front.pid}/fd").iterdir()))

    with region(client, "one", 4096):
        before = open_files()
        for number in range(250):
            for call in (
                ("one", "/osp_test_one", 4096),
                ("two", f"/osp_test_none_{number}", 4096),
                ("two", "/osp_test_one", 8192),
                ("two", "/osp_test_one", 64, 2**63),
            ):
                code(lambda call=call: client.register_system_shared_memory(*call))
        assert open_files() <= before + 2


def truncating(front: Front, client: Any, rounds: int, nbytes: int) -> None:
    """A client that truncates its memory before, during and after requests, beside a neighbour that goes on."""
    pids = [front.pid, *front.node.children("workers.executor")]
    x, small = np.ones(nbytes // 8, np.float32), np.ones(1000, np.float32)
    path = "/dev/shm/osp_test_cut"
    with region(client, "cut", nbytes) as cut, grpc_client(front.grpc) as neighbour:
        inputs = [lies("x", [len(x)], "FP32", "cut", x.nbytes)]
        outputs = [goes("y", "cut", x.nbytes, x.nbytes)]
        for number in range(rounds):
            shared_memory.set_shared_memory_region(cut, [x])
            answers: queue.Queue[Any] = queue.Queue()
            if number % 3:
                client.async_infer(
                    "echo_FP32", inputs, lambda result, error, a=answers: a.put((result, error)), outputs=outputs
                )
                time.sleep(number % 29 / 29 * (0.7e-3 if nbytes <= REGION else 6e-3))  # as long as it takes
                os.truncate(path, 0)
                _, error = answers.get(timeout=30)
                assert error is None or "INVALID_ARGUMENT" in str(error.status()), error
            os.truncate(path, 0)
            assert code(lambda: client.infer("echo_FP32", inputs, outputs=outputs)) == "INVALID_ARGUMENT"
            assert Path(path).stat().st_size == 0, "a write never makes memory longer that was cut"
            os.truncate(path, nbytes)
            if not number % 10:
                found = neighbour.infer("echo_FP32", [given("x", small)]).as_numpy("y")
                np.testing.assert_array_equal(found, small)
    assert [front.pid, *front.node.children("workers.executor")] == pids


def test_truncated_memory_spoils_that_request_only(front: Front, client: Any) -> None:
    truncating(front, client, 30, LARGE)


@pytest.mark.long
@pytest.mark.parametrize("nbytes", [REGION, LARGE])
def test_truncated_memory_a_thousand_times(front: Front, client: Any, nbytes: int) -> None:
    truncating(front, client, 1000, nbytes)


def attacked(*words: str) -> str:
    """What the program that attacks its own copies says; a bus error would end it."""
    command = [sys.executable, "-m", "tests.integration.shm_attack", *words]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=300, text=True, check=False)
    assert found.returncode == 0, (found.returncode, found.stdout, found.stderr)
    return found.stdout


@pytest.mark.parametrize("rounds", [150, pytest.param(6000, marks=pytest.mark.long)])
def test_copies_of_memory_that_is_cut_punched_and_rewritten_meanwhile(rounds: int) -> None:
    whole, refused, deaths = map(int, attacked(str(rounds), "7").split())
    assert whole, "some met nothing"
    assert refused, "some were cut"
    assert deaths, "copiers met it"


@pytest.mark.parametrize("rounds", [2, pytest.param(60, marks=pytest.mark.long)])
def test_copiers_that_are_killed_or_stopped_cost_no_request(front: Front, client: Any, rounds: int) -> None:
    x = np.arange(LARGE // 4, dtype=np.float32)
    inputs, outputs = [lies("x", [len(x)], "FP32", "in", LARGE)], [goes("y", "out", LARGE)]
    for number in range(rounds):
        with region(client, "in", LARGE) as there, region(client, "out", LARGE) as back:
            shared_memory.set_shared_memory_region(there, [x + number])
            wait_until(lambda: serves(front, lambda: client.infer("echo_FP32", inputs, outputs=outputs)), 60.0)
            answers: queue.Queue[Any] = queue.Queue()
            for _ in range(3):
                client.async_infer("echo_FP32", inputs, lambda result, error, a=answers: a.put(error), outputs=outputs)
                time.sleep(number % 7 / 7 * 3e-3)  # before, while or after they copy
                for pid in copiers(front)[: 1 + number // 2 % 2]:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGSTOP if number % 2 else signal.SIGKILL)
            assert [answers.get(timeout=30) for _ in range(3)] == [None] * 3
            found = shared_memory.get_contents_as_numpy(back, np.float32, [len(x)])
            np.testing.assert_array_equal(found, x + number)
    metrics = urllib.request.urlopen(f"http://{front.http}/metrics", timeout=30).read().decode()
    (deaths,) = re.findall(r"^overspill_frontdoor_copier_deaths (\d+)", metrics, re.MULTILINE)
    assert int(deaths)


def copiers(front: Front) -> list[int]:
    """The processes that copy shared memory for a front door."""
    found = []
    for path in Path(f"/proc/{front.pid}/task").glob("*/children"):
        found += [int(pid) for pid in path.read_text().split()]
    return found


def serves(front: Front, call: Callable[[], object]) -> bool:
    """Whether there are copiers now; calls where there are none, which has them started."""
    call()
    return len(copiers(front)) == 2


def test_a_region_may_go_while_a_hundred_requests_use_it(front: Front, client: Any) -> None:
    x = np.arange(1000, dtype=np.float32)
    answers: queue.Queue[Any] = queue.Queue()
    with region(client, "busy") as busy:
        shared_memory.set_shared_memory_region(busy, [x])
        client.async_infer(
            "rough", [given("x", np.array([SLEEP, 100]), "INT64")], lambda result, error: answers.put((None, error))
        )
        for _ in range(100):
            client.async_infer(
                "echo_FP32",
                [lies("x", [1000], "FP32", "busy", 4000)],
                lambda result, error: answers.put((result, error)),
            )
        client.unregister_system_shared_memory("busy")
        done = [answers.get(timeout=30) for _ in range(101)]
        for result, error in done:
            if error is None and result is not None:
                np.testing.assert_array_equal(result.as_numpy("y"), x)
            assert error is None or "NOT_FOUND" in str(error.status()), error
    assert not any("osp_test_busy" in each for each in open_files(front.pid)), "it is closed after the last"


def test_a_killed_client_leaves_no_region_and_no_neighbour_suffers(front: Front, client: Any) -> None:
    with region(client, "mine", 4096):
        process = subprocess.Popen(
            [sys.executable, "-c", CLIENT, front.grpc], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"registered\n"
            # One user's clients may use each other's regions, as with Triton.
            assert len(client.get_system_shared_memory_status().regions) == 51
            client.unregister_system_shared_memory()  # of this client only
            client.register_system_shared_memory("mine", "/osp_test_mine", 4096)
            assert len(client.get_system_shared_memory_status().regions) == 51
            process.send_signal(signal.SIGKILL)
            began = time.monotonic()
            wait_until(lambda: len(client.get_system_shared_memory_status().regions) == 1, 20)
            assert time.monotonic() - began < 10.0, "a lease of 1 s, a look each second, and a busy machine"
        finally:
            process.kill()
            process.communicate()
            for number in range(50):
                Path(f"/dev/shm/osp_killed_{number}").unlink(missing_ok=True)
        assert list(client.get_system_shared_memory_status().regions) == ["mine"]


STRANGER = """
import os, sys
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException
os.setgid(65534); os.setuid(65534)  # after the imports: another user may not be able to read the environment
client = triton.InferenceServerClient(sys.argv[1])
fd = os.open("/dev/shm/osp_test_strangers", os.O_CREAT | os.O_RDWR, 0o600)
os.ftruncate(fd, 4096)
try:
    client.register_system_shared_memory("theirs", "/osp_test_private", 4096)
except InferenceServerException as error:
    print(error.status())
client.register_system_shared_memory("private", "/osp_test_strangers", 4096)
print(list(client.get_system_shared_memory_status().regions))
client.unregister_system_shared_memory()
os.unlink("/dev/shm/osp_test_strangers")
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to be another user")
def test_another_user_reaches_only_what_the_system_lets_it(front: Front, client: Any) -> None:
    with region(client, "private", 4096):
        Path("/dev/shm/osp_test_private").chmod(0o600)
        found = subprocess.run(
            [sys.executable, "-c", STRANGER, front.grpc],
            cwd="/",
            capture_output=True,
            timeout=60,
            text=True,
            check=False,
        )
        assert found.stdout.splitlines() == ["StatusCode.INTERNAL", "['private']"], found.stderr
        assert list(client.get_system_shared_memory_status().regions) == ["private"]


FULL = """
import asyncio, os, subprocess, sys
from pathlib import Path
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from frontdoor.clients import Owner
from frontdoor.copiers import Copiers
from frontdoor.copies import Copies
from frontdoor.failures import Refusal
from frontdoor.regions import Regions
folder = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=True)
(folder / "key").touch()
os.truncate(folder / "key", 4 << 20)
owner = Owner("uid 0", 0, None, ("127.0.0.1", 1))
regions = Regions(folder=folder)
regions.register(owner, "r", "/key", 0, 4 << 20)
region, words = regions.find(owner, "r"), memoryview(bytes(2 << 20))
try:
    region.write_from(0, words)
except Refusal as error:
    print(error.status.name, error)

async def put():
    copiers = Copiers()
    copies, arena = Copies(copiers), Arena.create(8 << 20)
    lease = Lease.of(arena, 2 << 20)
    while not copiers.deaths:  # the first copies find none, and are the kernel's
        try:
            await copies.put(region, 2 << 20, lease.view, arena)
        except Refusal as error:
            print(error.status.name, error)
    copies.close()

asyncio.run(put())
"""


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a small file system")
def test_memory_that_the_system_cannot_give_is_no_bus_error(tmp_path: Path) -> None:
    """A client sized its memory beyond what /dev/shm has: the first write finds out, and the process lives."""
    command = ["unshare", "--mount", sys.executable, "-c", FULL, str(tmp_path)]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=60, text=True, check=False)
    if found.returncode == 1 and ("unshare" in found.stderr or "mount" in found.stderr):
        pytest.skip(f"mounts are not allowed here: {found.stderr.splitlines()[-1]}")
    told = [line.split()[0] for line in found.stdout.splitlines()]
    assert set(told) == {"RESOURCE_EXHAUSTED"}, found.stderr
    assert len(told) > 1, found.stderr
    assert "was ended by signal 7" in found.stderr, "a copier met it"
