"""Policies that read some workers before each choice, or see all of them in a snapshot that is some time old.

Read `router/policies/c3.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.policies.base import Quiet

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policies.base import Report, Setting, Task

SNAPSHOT_S = 0.1
"""How often a snapshot is taken, where a policy lives on snapshots."""


class Snapshot(Quiet):  # mutable: the last snapshot
    """The shortest queue of a snapshot. With `own`, the router's dispatches since then count too."""

    def __init__(self, setting: Setting, *, own: bool = False) -> None:
        self._rng = setting.rng
        self._own = own
        self._waiting = [0] * setting.count

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The shortest, dice between equals."""
        waiting, rng = self._waiting, self._rng
        best = min(range(len(waiting)), key=lambda worker: (waiting[worker], rng.random()))
        if self._own:
            waiting[best] += 1
        return (best,)

    def probed(self, report: Report, now: float) -> None:
        """One line of a snapshot."""
        self._waiting[report.worker] = report.waiting


def count(report: Report, task: Task, setting: Setting) -> float:
    """Requests waiting and running."""
    return float(report.waiting)


def count_over_speed(report: Report, task: Task, setting: Setting) -> float:
    """The same over the worker's nominal speed."""
    return (report.waiting + 1) / setting.speeds[report.worker]


def count_over_measured(report: Report, task: Task, setting: Setting) -> float:
    """The same over what it was measured to compute."""
    return (report.waiting + 1) * report.service_ms


def work(report: Report, task: Task, setting: Setting) -> float:
    """The outstanding work and this request's own, in the worker's own time."""
    return report.work_ms + (task.hint_ms or 1.0) * report.rate


class Polled(Quiet):
    """Reads `reads` workers at random and takes the one where `cost` is least."""

    def __init__(self, setting: Setting, reads: int, cost: Callable[[Report, Task, Setting], float]) -> None:
        self._setting, self._reads, self._cost = setting, reads, cost
        self._workers = range(setting.count)

    def wants(self, task: Task, now: float) -> tuple[int, ...]:
        """So many at random."""
        return tuple(self._setting.rng.sample(self._workers, self._reads))

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The least, the first read between equals: the order is random already."""
        return (min(reports, key=lambda report: self._cost(report, task, self._setting)).worker,)
