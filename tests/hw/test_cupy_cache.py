"""R35: ten processes compile the same kernel with an empty cache of CuPy, a cut file in it is made anew, and a second
start compiles nothing. A model of ours would meet all three when many executors start at once, or a disk was full."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from fabric.errors import MissingDependency
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.hw, pytest.mark.timeout(300)]

PROCESSES = 10
CODE = """
import sys, cupy
from cupy.cuda import compiler
compiled, original = [], compiler.compile_using_nvrtc
def counting(*args, **kwargs):
    compiled.append(1)
    return original(*args, **kwargs)
compiler.compile_using_nvrtc = counting
twice = cupy.RawKernel('extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }', "twice")
x = cupy.ones(32, cupy.float32)
twice((1,), (32,), (x,))
assert float(x.sum()) == 64.0
print(len(compiled))
"""


@pytest.fixture(autouse=True)
def card() -> None:
    try:
        Nvml().cards()
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


def test_ten_processes_and_an_empty_cache_then_a_cut_one(tmp_path: Path) -> None:
    assert all(count == 1 for count in map(compiled, [start(tmp_path) for _ in range(PROCESSES)]))
    assert compiled(start(tmp_path)) == 0
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[:40])
    assert compiled(start(tmp_path)) == 1
    assert compiled(start(tmp_path)) == 0
