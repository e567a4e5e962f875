"""How fast `etr` is with ONNX Runtime on this machine's processor.

    python -m examples.dispatch.etr.bench

Prints, per thread count and batch, the median and the 99th percentile of one call and the pairs per second at the
median, and beside them the same run's matrix product as a calibrator, since shared machines drift. Inputs are
simulated pairs with 16 stop columns. It judges nothing: goals belong to whoever knows the machine. Next: nothing,
this is the end of the room.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.etr import rounds
from examples.dispatch.etr.modelfile import BrokenModelFile, shipped
from examples.dispatch.etr.serve import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BATCHES = (1, 64, 512, 4096)
THREADS = (1, 2)
CALLS_MIN, CALLS_MAX = 5, 400  # 400 calls give a 99th percentile four samples above it


@dataclass(frozen=True, slots=True)
class Speed:
    """One line of the table."""

    threads: int
    pairs: int
    calls: int
    median_ms: float
    p99_ms: float

    @property
    def pairs_per_s(self) -> float:
        """Pairs per second at the median."""
        return self.pairs / (self.median_ms / 1e3)


def _times_ms(call: Callable[[], object], budget_s: float) -> list[float]:
    """Call times after two warm-up calls, until the budget is spent or CALLS_MAX is reached."""
    call()
    call()
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < CALLS_MIN or (len(times) < CALLS_MAX and time.perf_counter() - start < budget_s):
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e3)
    return times


def measure(budget_s: float, batches: Sequence[int] = BATCHES, threads: Sequence[int] = THREADS) -> tuple[Speed, ...]:
    """One Speed per thread count and batch, each within about `budget_s` seconds; raises BrokenModelFile."""
    pairs = rounds.simulate(rounds.make_city(), max(batches), seed=5).inputs
    table = []
    for count in threads:
        session = Session(shipped("etr"), threads=count)
        for batch in batches:
            inputs = pairs.rows(slice(0, batch))
            times = _times_ms(partial(session.etr, inputs), budget_s)
            table.append(Speed(count, batch, len(times), float(np.median(times)), float(np.quantile(times, 0.99))))
    return tuple(table)


def calibrate_gflops() -> float:
    """Single-precision matrix product of 512 x 512, billions of operations a second, median of 5."""
    a = np.ones((512, 512), np.float32)
    times = []
    for _ in range(6):
        begin = time.perf_counter()
        np.matmul(a, a)
        times.append(time.perf_counter() - begin)
    return float(2 * 512**3 / np.median(times[1:]) / 1e9)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.dispatch.etr.bench", description="Speed of etr on this CPU."
    )
    parser.add_argument("--budget-s", type=float, default=2.0, help="seconds per line of the table")
    arguments = parser.parse_args(argv)
    print(f"calibrator: 512 x 512 float32 matrix product at {calibrate_gflops():.0f} GFLOP/s")
    try:
        table = measure(arguments.budget_s)
    except BrokenModelFile as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{'threads':>7}{'pairs':>7}{'calls':>7}{'median ms':>11}{'p99 ms':>9}{'pairs/s':>10}")
    for row in table:
        speed = f"{row.median_ms:>11.3f}{row.p99_ms:>9.2f}{row.pairs_per_s:>10,.0f}"
        print(f"{row.threads:>7}{row.pairs:>7}{row.calls:>7}{speed}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
