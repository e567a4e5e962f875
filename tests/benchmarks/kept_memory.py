"""What glibc keeps of models that were unloaded: two blocks of 8 MiB, each made by a thread of its own, and freed.

`python -m tests.benchmarks.kept_memory` prints what the process has after each round beyond what it had before, in KiB;
with `MALLOC_ARENA_MAX=1`, as executors have it (`workers/heap.py`), it has nothing.
"""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import numpy as np

ROUNDS = 6
held: dict[str, object] = {}


def load(name: str) -> None:
    """A model's weights."""
    held[name] = np.ones(1 << 20)


def kept_kib() -> int:
    """Anonymous memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Loads two models and lets them go, as executors do it, a few times."""
    trim = ctypes.CDLL(None).malloc_trim
    before = kept_kib()
    for number in range(ROUNDS):
        for name in ("serves", "fails"):
            thread = threading.Thread(target=load, args=(name,))
            thread.start()
            thread.join()
        for name in ("fails", "serves"):
            del held[name]
            trim(0)
        print(f"round {number + 1}: {kept_kib() - before} KiB")


if __name__ == "__main__":
    main()
