"""A client's process that owns memory on a card, made by CuPy: it says the handle, and does what it is told by lines.

    python -m tests.hw.card_owner

Lines in: `make NAME BYTES` (answered by the handle in hex), `put NAME OFFSET SEED FLOATS` (random floats, from a seed),
`sum NAME OFFSET FLOATS` (answered by a hash of the bytes there), `free NAME`. It ends with its input. Read
`tests/hw/test_gpu_shared.py` next.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
ANSWER_S = 60.0


def floats(seed: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return np.random.default_rng(seed).random(count, np.float32)


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Owner:
    """The process, as a test holds it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hw.card_owner"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        assert answer, "the owner of the memory is gone"
        return answer

    def make(self, name: str, nbytes: int) -> bytes:
        return bytes.fromhex(self.ask("make", name, nbytes))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(ANSWER_S)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main() -> None:
    """Obeys."""
    import cupy

    runtime, made = cupy.cuda.runtime, {}
    for line in sys.stdin:
        word, name, *rest = line.split()
        numbers = list(map(int, rest))
        answer = "done"
        if word == "make":
            made[name] = runtime.malloc(numbers[0])
            runtime.memset(made[name], 0, numbers[0])
            answer = runtime.ipcGetMemHandle(made[name]).hex()
        elif word == "put":
            offset, seed, count = numbers
            array = floats(seed, count)
            runtime.memcpy(made[name] + offset, array.ctypes.data, array.nbytes, runtime.memcpyHostToDevice)
        elif word == "sum":
            offset, count = numbers
            array = np.empty(count, np.float32)
            runtime.memcpy(array.ctypes.data, made[name] + offset, array.nbytes, runtime.memcpyDeviceToHost)
            answer = digest(array.tobytes())
        elif word == "free":
            runtime.free(made.pop(name))
        runtime.deviceSynchronize()
        sys.stdout.write(answer + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
