"""Prequal (NSDI 2024): probes that serve later requests, and the hot-cold rule over what they found.

Each request triggers probes of random workers; their answers (requests in flight, and the latency that requests met
which found as many) go into a small pool. A choice takes, among the workers that are not hot, the one of the lowest
latency; hot is who has more in flight than most. A probe's answer is used a few times, each use counted as one more in
flight, and is too old after a second. How sinks are avoided is not published, so it is not done here. Read
`router/policies/oracle.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from router.policies.base import Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policies.base import Report, Setting, Task

POOL = 16
PROBES = 3
REMOVED = 1
AGE_S = 1.0
DELTA = 1.0
HOT_QUANTILE = 2.0**-0.25
"""The paper's settings: pool, probes and removals for each request, age limit, surplus, and who counts as hot."""


class _Probe:  # mutable: is used up
    __slots__ = ("latency_ms", "made_s", "uses", "waiting", "worker")

    def __init__(self, report: Report, uses: int) -> None:
        self.worker = report.worker
        self.waiting = report.waiting
        self.latency_ms = report.latency_ms
        self.made_s = report.made_s
        self.uses = uses


class Prequal(Quiet):  # mutable: its pool
    """The asynchronous mode of the paper."""

    def __init__(self, setting: Setting) -> None:
        self._rng, self._count = setting.rng, setting.count
        self._workers = range(setting.count)
        self._pool: list[_Probe] = []
        self._seen: deque[int] = deque(maxlen=128)
        self._reuse = max(1.0, (1.0 + DELTA) / ((1.0 - POOL / setting.count) * PROBES - REMOVED))
        self._remove_oldest = False

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The hot-cold rule."""
        pool = self._pool = [probe for probe in self._pool if now - probe.made_s < AGE_S]
        if len(pool) < 2:
            return (int(self._rng.random() * self._count),)
        hot = self._hot_from()
        cold = [probe for probe in pool if probe.waiting <= hot]
        best = min(cold, key=lambda probe: probe.latency_ms) if cold else min(pool, key=lambda probe: probe.waiting)
        best.waiting += 1
        best.uses -= 1
        if best.uses <= 0:
            pool.remove(best)
        for _ in range(REMOVED):
            self._remove(hot)
        return (best.worker,)

    def _hot_from(self) -> int:
        if not self._seen:
            return 0
        ranked = sorted(self._seen)
        return ranked[min(len(ranked) - 1, int(HOT_QUANTILE * len(ranked)))]

    def _remove(self, hot: int) -> None:
        """The oldest and the worst go in turn."""
        pool = self._pool
        if not pool:
            return
        self._remove_oldest = not self._remove_oldest
        if self._remove_oldest:
            pool.remove(min(pool, key=lambda probe: probe.made_s))
            return
        hottest = [probe for probe in pool if probe.waiting > hot]
        worst = (
            max(hottest, key=lambda probe: probe.waiting) if hottest else max(pool, key=lambda probe: probe.latency_ms)
        )
        pool.remove(worst)

    def probes(self, now: float) -> tuple[int, ...]:
        """Some at random."""
        return tuple(self._rng.sample(self._workers, min(PROBES, self._count)))

    def probed(self, report: Report, now: float) -> None:
        """Into the pool; the oldest makes room."""
        self._seen.append(report.waiting)
        uses = int(self._reuse) + (self._rng.random() < self._reuse - int(self._reuse))
        self._pool.append(_Probe(report, uses))
        if len(self._pool) > POOL:
            self._pool.remove(min(self._pool, key=lambda probe: probe.made_s))
