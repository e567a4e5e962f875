"""Of blocks that threads made and that were freed nothing stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import sys
import threading
import numpy as np
from pathlib import Path
from workers.heap import give_back, one_arena

def kept():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

held = {}
def load(name):
    held[name] = np.ones(1 << 20)

if sys.argv[1] == "one":
    one_arena()
before, most = kept(), 0
for _ in range(6):
    for name in ("serves", "fails"):
        thread = threading.Thread(target=load, args=(name,))
        thread.start()
        thread.join()
    for name in ("fails", "serves"):
        del held[name]
        give_back()
    most = max(most, kept() - before)
print(most)
"""
BLOCK_KIB = 8 << 10


def most_kib(how: str) -> int:
    """What was kept at most after a round."""
    return int(
        subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, check=True, timeout=120).stdout
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_threads_allocated_goes_back_when_it_is_freed() -> None:
    assert most_kib("one") < BLOCK_KIB // 4


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_with_arenas_for_threads_it_would_stay() -> None:
    assert most_kib("many") > BLOCK_KIB
