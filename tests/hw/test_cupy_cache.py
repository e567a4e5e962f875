"""R35: ten processes compile the same kernel with an empty cache of CuPy, a cut file in it is made anew, and a second
start compiles nothing. A model of ours would meet all three when many executors start at once, or a disk was full."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fabric.errors import MissingDependency
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(300),
    pytest.mark.leaks("the driver's library keeps its descriptors for the life of a process"),
]

PROCESSES = 10
CUT_BYTES = 40
"""What a disk that is full may leave of a file; CuPy's checksum of the rest is in them."""
CODE = """
import cupy
code = 'extern "C" __global__ void twice_of_ours(float* x) { x[threadIdx.x] *= 2; }'
twice = cupy.RawKernel(code, "twice_of_ours")
x = cupy.asarray([1.0] * 32, cupy.float32)
twice((1,), (32,), (x,))
assert x.get().tolist() == [2.0] * 32
"""


@pytest.fixture(autouse=True)
def card(report: Report) -> None:
    try:
        report.device = Nvml().cards()[0].model
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))
    pytest.importorskip("cupy", reason="CuPy is not installed")


def start(cache: Path) -> subprocess.Popen[str]:
    environment = {**os.environ, "CUPY_CACHE_DIR": str(cache)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", CODE], env=environment, stdout=pipe, stderr=pipe, text=True)


def ends_well(process: subprocess.Popen[str]) -> None:
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err


def written(cache: Path) -> dict[str, tuple[int, int]]:
    """(when it was written, bytes) of each file that CuPy keeps: what is compiled is written there."""
    files = [file for file in cache.rglob("*") if file.is_file()]
    return {str(file): (file.stat().st_mtime_ns, file.stat().st_size) for file in files}


def test_ten_processes_and_an_empty_cache_then_a_cut_one(tmp_path: Path, report: Report) -> None:
    began_s = time.monotonic()
    for process in [start(tmp_path) for _ in range(PROCESSES)]:
        ends_well(process)
    crowd_s = time.monotonic() - began_s
    whole = written(tmp_path)
    assert whole, "nothing was kept"
    ends_well(start(tmp_path))
    assert written(tmp_path) == whole, "a second start compiles nothing"
    for name in whole:
        file = Path(name)
        file.write_bytes(file.read_bytes()[:CUT_BYTES])
    ends_well(start(tmp_path))
    again = written(tmp_path)
    assert set(again) == set(whole)
    assert min(nbytes for _, nbytes in again.values()) > CUT_BYTES, "what was cut is whole again"
    ends_well(start(tmp_path))
    assert written(tmp_path) == again
    report.add("cupy_cache", processes=PROCESSES, crowd_s=round(crowd_s, 2), files=len(whole))
