"""perf_analyzer, unchanged, against the front door: a sweep over each protocol and kind of memory, its counts ours.

It is built for a newer C library than Debian 12's, so it runs with the libraries of Debian 13, unpacked beside it.
Nothing is installed. Where the wheel or the packages cannot be had, the tests are skipped and say so.
"""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.debian import DebianError, cache_folder, fetch, locked, run, unpack

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.frontdoors import Front

WHEEL = "perf-analyzer==2.60.0"
PLATFORM = "manylinux_2_38_x86_64"
PACKAGES = ("libc6", "libgcc-s1", "libssl3t64", "libstdc++6", "libzstd1", "zlib1g")
LIBRARIES = "root/usr/lib/x86_64-linux-gnu"
PROGRAM = "wheel/perf_analyzer/bin/perf_analyzer"
FETCH_S, RUN_S = 180.0, 240.0
WINDOWS = ["--measurement-mode", "count_windows", "--measurement-request-count", "200", "-s", "999"]
"""By number and whatever their spread: the machine may be busy, and the counts are what is looked at."""

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def perf_analyzer() -> list[str]:
    """The command that runs it."""
    folder = cache_folder("perf-analyzer")
    try:
        with locked(folder / "lock"):
            if not (folder / "done").exists():
                _fetch(folder)
    except DebianError as error:
        pytest.skip(f"perf_analyzer cannot be had: {error}")
    libraries = folder / LIBRARIES
    return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(folder / PROGRAM)]


def _fetch(folder: Path) -> None:
    unpack(tuple(fetch(PACKAGES, "trixie").values()), folder / "root")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--quiet"]
    wanted = ["--no-deps", "--only-binary=:all:", "--platform", PLATFORM, "--python-version", "3.12", WHEEL]
    run([*pip, *wanted, "--dest", str(folder)], FETCH_S)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "wheel")
    (folder / PROGRAM).chmod(0o755)
    (folder / "done").touch()


@pytest.mark.parametrize("memory", ["none", "system"])
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_sweep(front: Front, perf_analyzer: list[str], protocol: str, memory: str) -> None:
    address = front.grpc if protocol == "grpc" else front.http
    words = [
        "-m", "echo_FP32", "-u", address, "-i", protocol, "--shape", "x:16384", "--shared-memory", memory,
        "--output-shared-memory-size", "65536", "--concurrency-range", "1:4", *WINDOWS,
    ]  # fmt: skip
    done = subprocess.run([*perf_analyzer, *words], capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    steps = done.stdout.split("Request concurrency: ")[1:]
    assert len(steps) == 4, done.stdout
    for concurrency, step in enumerate(steps, 1):
        client = int(re.findall(r"Request count: (\d+)", step)[0])
        server = int(re.findall(r"Inference count: (\d+)", step)[0])
        assert client > 50, step
        # Requests on their way at either end of a window are counted on one side only; a figure is of three windows.
        assert abs(client - server) <= 3 * 2 * concurrency, step


def test_a_sweep_of_streams(front: Front, perf_analyzer: list[str]) -> None:
    words = ["-m", "echo_FP32", "-u", front.grpc, "-i", "grpc", "--shape", "x:64", "--streaming", "--async"]
    more = ["--concurrency-range", "4:4", *WINDOWS]
    done = subprocess.run([*perf_analyzer, *words, *more], capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert int(re.findall(r"Request count: (\d+)", done.stdout)[0]) > 50
