"""Timing for benchmarks: closed loops, medians, and several clients at once."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
"""An absolute figure is the median of this many rounds (DESIGN.md 9)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: p50 of a closed loop with one client, or calls per second of several."""

    name: str
    size_bytes: int
    p50_us: float = 0.0
    per_s: float = 0.0


def p50_us(call: Callable[[], object], seconds: float) -> float:
    """The median time of one call in microseconds, over about `seconds`, after a short warm-up."""
    times: list[float] = []
    for budget_s, keep in ((min(0.1, seconds / 4), False), (seconds, True)):
        end = time.perf_counter() + budget_s
        count = 0
        while time.perf_counter() < end or count < 5:
            began = time.perf_counter()
            call()
            if keep:
                times.append(time.perf_counter() - began)
            count += 1
    return statistics.median(times) * 1e6


def _client(make: Callable[[], Callable[[], object]], seconds: float, gate, counts) -> None:
    call = make()
    for _ in range(5):
        call()
    gate.wait(60)
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end:
        call()
        count += 1
    counts.put(count)


def per_second(make: Callable[[], Callable[[], object]], seconds: float, clients: int = 8) -> float:
    """Calls per second of `clients` processes in closed loops; `make` runs in each and gives the call."""
    context = multiprocessing.get_context("spawn")
    gate, counts = context.Barrier(clients), context.Queue()
    workers = [context.Process(target=_client, args=(make, seconds, gate, counts)) for _ in range(clients)]
    for worker in workers:
        worker.start()
    try:
        return sum(counts.get(timeout=60 + seconds) for _ in workers) / seconds
    finally:
        for worker in workers:
            worker.join(10)
            if worker.is_alive():
                worker.kill()
                worker.join()
