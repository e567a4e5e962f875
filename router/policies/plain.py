"""Policies that know nothing, or only what their own router sent: the floor that every better one is compared with.

Read `router/policies/polled.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING

from router.policies.base import Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policies.base import Answered, Report, Setting, Task


class Random(Quiet):
    """Any worker."""

    def __init__(self, setting: Setting) -> None:
        self._rng, self._count = setting.rng, setting.count

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """Throws dice."""
        return (int(self._rng.random() * self._count),)


class RoundRobin(Quiet):  # mutable: its turn
    """One after the other, from a place of its own."""

    def __init__(self, setting: Setting) -> None:
        self._count = setting.count
        self._turn = int(setting.rng.random() * setting.count)

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The next one."""
        self._turn = (self._turn + 1) % self._count
        return (self._turn,)


class Weighted(Quiet):  # mutable: its credits
    """Round robin weighted by nominal speed, smooth: each worker earns its speed, the richest is taken and pays."""

    def __init__(self, setting: Setting) -> None:
        self._speeds = setting.speeds
        self._total = sum(setting.speeds)
        self._credit = [setting.rng.random() * self._total for _ in setting.speeds]

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The richest."""
        credit = self._credit = [have + speed for have, speed in zip(self._credit, self._speeds, strict=True)]
        best = max(range(len(credit)), key=credit.__getitem__)
        credit[best] -= self._total
        return (best,)


class _Counting(Quiet):  # mutable: counts
    """What all policies share that count their own requests."""

    def __init__(self, setting: Setting) -> None:
        self._rng, self._count = setting.rng, setting.count
        self._out = [0] * setting.count

    def _send(self, worker: int) -> tuple[int, ...]:
        self._out[worker] += 1
        return (worker,)

    def _two(self) -> tuple[int, int]:
        first = int(self._rng.random() * self._count)
        second = int(self._rng.random() * (self._count - 1))
        return first, second + (second >= first)

    def answered(self, task: Task, answer: Answered, now: float) -> None:
        """One less is out."""
        self._out[answer.worker] -= 1


class LeastLoaded(_Counting):
    """The worker with the fewest of the router's own requests, dice between equals."""

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The one with the fewest."""
        rng = self._rng
        return self._send(min(range(self._count), key=lambda worker: (self._out[worker], rng.random())))


class PickTwo(_Counting):
    """Two at random, the one with fewer of the router's own requests."""

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The one with fewer."""
        first, second = self._two()
        return self._send(first if self._out[first] <= self._out[second] else second)


class PeakEwma(_Counting):  # mutable: learns
    """Two at random, the one with the lower latency times requests out; a slow answer counts at once and fades within
    ten seconds (Finagle, Linkerd, tower)."""

    PRIOR_MS = 30.0
    FADES_S = 10.0

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self._cost_ms = [self.PRIOR_MS] * setting.count
        self._at_s = [0.0] * setting.count

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The cheaper one."""
        first, second = self._two()
        return self._send(first if self._load(first, now) <= self._load(second, now) else second)

    def _load(self, worker: int, now: float) -> float:
        faded = exp((self._at_s[worker] - now) / self.FADES_S)
        return self._cost_ms[worker] * faded * (self._out[worker] + 1)

    def answered(self, task: Task, answer: Answered, now: float) -> None:
        """Takes the peak, or the mean."""
        super().answered(task, answer, now)
        worker, cost_ms = answer.worker, self._cost_ms[answer.worker]
        if answer.took_ms > cost_ms:
            self._cost_ms[worker] = answer.took_ms
        else:
            keep = exp((self._at_s[worker] - now) / self.FADES_S)
            self._cost_ms[worker] = cost_ms * keep + answer.took_ms * (1.0 - keep)
        self._at_s[worker] = now
