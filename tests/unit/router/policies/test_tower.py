"""A published figure made again: tower's load balancer demo (tower-rs/tower#76), fifteen cells within ten percent.

Fifty callers in a closed loop send 50,000 requests to ten endpoints that answer after a uniform time up to 1 ms, four
times 10 ms, four times 100 ms and 1000 ms.
"""

from __future__ import annotations

import heapq
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from router.policies.base import Answered, Report, Setting, Task
from router.policies.plain import PeakEwma, PickTwo, RoundRobin

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.policies.base import Policy

MAX_MS = (1.0, *(10.0,) * 4, *(100.0,) * 4, 1000.0)
PUBLISHED = {
    PeakEwma: (5, 56, 78, 96, 105),
    PickTwo: (5, 57, 80, 98, 857),
    RoundRobin: (9, 98, 496, 906, 988),
}
QUANTILES = (50, 90, 95, 99, 99.9)


def demo(make: Callable[[Setting], Policy], requests: int) -> list[float]:
    """The quantiles of what callers waited, in ms."""
    dice = Random(1)
    policy = make(Setting(0, 1, (1.0,) * 10, (0.0,) * 10, (), Random(2), hinted=False, nodes=()))
    due: list[tuple[float, int, Task, int, float]] = []
    took, begun, now = [], 0, 0.0

    def send() -> None:
        nonlocal begun
        task = Task(begun, 0, now, 0.0, 0.0)
        (worker,) = policy.choose(task, (), now)
        ms = dice.uniform(0.0, MAX_MS[worker])
        heapq.heappush(due, (now + ms / 1000.0, begun, task, worker, ms))
        begun += 1

    for _ in range(50):
        send()
    while due:
        now, _, task, worker, ms = heapq.heappop(due)
        took.append(ms)
        report = Report(worker, now, 0, 0.0, 0.0, 0.0, 0.0)
        policy.answered(task, Answered(worker, ms, ms, 0.0, report), now)
        if begun < requests:
            send()
    return [float(np.percentile(took, at)) for at in QUANTILES]


@pytest.mark.parametrize("make", PUBLISHED, ids=lambda make: make.__name__)
def test_fifteen_cells_are_within_ten_percent(make: type[Policy]) -> None:
    for found, published in zip(demo(make, 50_000), PUBLISHED[make], strict=True):
        assert found == pytest.approx(published, rel=0.10, abs=0.5)
