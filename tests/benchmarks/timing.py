"""Timing for benchmarks: closed loops, medians, and several clients at once."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUNDS = 5
"""An absolute figure is the median of this many rounds (DESIGN.md 9)."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table: p50 of a closed loop with one client, or calls per second of several."""

    name: str
    size_bytes: int
    p50_us: float = 0.0
    per_s: float = 0.0


TURN_S = 0.03
"""What is compared is measured in turns of this length: where processes happen to run changes within seconds."""


def p50_us(call: Callable[[], object], seconds: float) -> float:
    """The median time of one call in microseconds, over about `seconds`, after a short warm-up."""
    return p50_each_us((call,), seconds)[0]


def p50_each_us(calls: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The same for several calls that take turns; each gets about `seconds`."""
    kept: list[list[float]] = [[] for _ in calls]
    for call in calls:
        _loop(call, min(0.1, seconds / 4), [])
    for _ in range(max(1, round(seconds / TURN_S))):
        for times, call in zip(kept, calls, strict=True):
            call()  # the first call of a turn finds the caches as the others left them
            _loop(call, TURN_S, times)
    return [statistics.median(times) * 1e6 for times in kept]


def _loop(call: Callable[[], object], seconds: float, times: list[float]) -> None:
    end = time.perf_counter() + seconds
    count = 0
    while time.perf_counter() < end or count < 5:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
        count += 1


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
