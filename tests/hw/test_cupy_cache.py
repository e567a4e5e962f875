"""R35: ten processes compile the same kernel with an empty cache of CuPy, a cut file in it is made anew, and a second
start compiles nothing. A model of ours would meet all three when many executors start at once, or a disk was full."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import MissingDependency
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from pathlib import Path

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
import sys, cupy
from cupy.cuda import compiler
compiled, original = [], compiler.compile_using_nvrtc
def counting(source, *args, **kwargs):
    compiled.append("twice_of_ours" in source)
    return original(source, *args, **kwargs)
compiler.compile_using_nvrtc = counting
CODE = 'extern "C" __global__ void twice_of_ours(float* x) { x[threadIdx.x] *= 2; }'
twice = cupy.RawKernel(CODE, "twice_of_ours")
x = cupy.asarray([1.0] * 32, cupy.float32)
twice((1,), (32,), (x,))
assert x.get().tolist() == [2.0] * 32
print(sum(compiled))
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


def compiled(process: subprocess.Popen[str]) -> int:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return int(out)


def test_ten_processes_and_an_empty_cache_then_a_cut_one(tmp_path: Path, report: Report) -> None:
    began_s = time.monotonic()
    crowd = [compiled(process) for process in [start(tmp_path) for _ in range(PROCESSES)]]
    crowd_s = time.monotonic() - began_s
    # One that comes late may find what another has just compiled, and the first cannot.
    assert set(crowd) <= {0, 1}
    assert sum(crowd) >= 1
    assert compiled(start(tmp_path)) == 0
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:CUT_BYTES])
    assert compiled(start(tmp_path)) == 1
    assert compiled(start(tmp_path)) == 0
    report.add("cupy_cache", processes=PROCESSES, compiled=sum(crowd), crowd_s=round(crowd_s, 2), files=len(files))
