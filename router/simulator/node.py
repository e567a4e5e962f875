"""One worker of the simulator: a queue, a batch that runs, slow spells, and the reports it makes of itself.

It estimates its own work as a node does: by what it ran so far and the sizes that routers told it, never by the truth.
This module routes nothing. Read `router/simulator/world.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from math import exp, log
from typing import TYPE_CHECKING

from router.policies.base import Report

if TYPE_CHECKING:
    from router.policies.base import Task
    from router.simulator.workload import Spells, Workload

_WEIGHT = 0.15
_SPREAD_WEIGHT = 0.02
_JUMP = 3.0
_JUMP_WEIGHT = 0.6
"""A run that is off by three times the usual error is a slow spell, or the end of one, rather than a bad guess."""
_LEFT_MIN = 0.1
"""Whatever has run as long as expected is taken to need a tenth of that more."""
_LATENCIES = 16
"""Recent latencies that are kept for each number of others found (Prequal's estimator)."""


class Node:  # mutable: works
    """Worker `number` of a workload. `begin` and `end` are called by the world at their instants."""

    def __init__(self, number: int, world: Workload, spells: Spells) -> None:
        self.number = number
        self.speed = world.speeds[number]
        self.queue: deque[Task] = deque()
        self.running: list[Task] = []
        self.ends_s = 0.0
        self.busy_s = 0.0
        self.began_s = 0.0
        self._slow_factor = world.slow_factor
        self._spells = spells
        self._batch_max = world.batch_max
        self._saves = world.batch_saves
        self._queued = 0.0
        self._queued_work = 0.0
        self._running_units = 0.0
        hinted = world.hint_error is not None
        self.rate = (1.0 if hinted else world.work_mean_ms) / self.speed
        self.service_ms = world.work_mean_ms / self.speed
        self._spread = 0.3 if hinted else 0.7
        self.accepted = [0] * len(world.demand)
        self._sequence = 0
        self._found: dict[int, tuple[int, float]] = {}  # by request: others found here, and when it came
        self._gone: set[int] = set()  # withdrawn, but still in the queue
        self._latencies: dict[int, deque[float]] = {}

    def take(self, task: Task, now: float) -> None:
        """A request arrives and waits."""
        self.accepted[task.router] += 1
        self.queue.append(task)
        self._queued += task.units
        self._queued_work += task.work_ms
        self._found[task.number] = (self.waiting - 1, now)

    @property
    def waiting(self) -> int:
        """Requests queued and running."""
        return len(self.queue) - len(self._gone) + len(self.running)

    def withdraw(self, task: Task) -> None:
        """A tied request was begun by another worker: it is not begun here. Too late where it runs already."""
        if task not in self.running and self._found.pop(task.number, None) is not None:
            self._gone.add(task.number)
            self._leave(task)

    def _leave(self, task: Task) -> None:
        self._queued -= task.units
        self._queued_work -= task.work_ms

    def begin(self, now: float) -> float | None:
        """Runs what waits, if it is idle and something does; gives the moment it ends. Requests that were withdrawn are
        passed over."""
        if self.running:
            return None
        batch: list[Task] = []
        while self.queue and len(batch) < self._batch_max:
            task = self.queue.popleft()
            if task.number in self._gone:
                self._gone.discard(task.number)
            else:
                self._leave(task)
                batch.append(task)
        if not self.queue:
            self._queued = self._queued_work = 0.0  # sums of floats drift
        if not batch:
            return None
        works = [task.work_ms * (1.0 if task.copies_begun else task.stalled) for task in batch]
        work_ms = sum(works) * (1.0 - self._saves) + max(works) * self._saves
        self.running, self.began_s = batch, now
        self._running_units = sum(task.units for task in batch)
        self.ends_s = self.finish_s(now, work_ms)
        for task in batch:
            task.begun(self.number, now)
        return self.ends_s

    def end(self, now: float) -> list[Task]:
        """The batch is done: learns from it, and gives it back."""
        batch, self.running = self.running, []
        took_ms = (now - self.began_s) * 1000.0
        self.busy_s += now - self.began_s
        self._learn(took_ms / self._running_units)
        self.service_ms += _WEIGHT * (took_ms / len(batch) - self.service_ms)
        for task in batch:
            found, came_s = self._found.pop(task.number)
            kept = self._latencies.get(found)
            if kept is None:
                kept = self._latencies[found] = deque(maxlen=_LATENCIES)
            kept.append((now - came_s) * 1000.0)
        return batch

    def _learn(self, sample: float) -> None:
        """One unit took so long. A figure far outside of what is usual is a slow spell: it counts much more."""
        off = log(max(sample, 1e-9) / self.rate)
        if abs(off) > _JUMP * self._spread:
            self.rate *= exp(_JUMP_WEIGHT * off)
        else:
            self.rate += _WEIGHT * (sample - self.rate)
            self._spread += _SPREAD_WEIGHT * (abs(off) - self._spread)

    def report(self, router: int, now: float) -> Report:
        """What it says of itself to a router."""
        self._sequence += 1
        waiting = self.waiting
        rate, left_ms = self.rate, 0.0
        if self.running:
            elapsed_ms = (now - self.began_s) * 1000.0
            late = elapsed_ms / (self._running_units * rate * exp(self._spread))
            if late > 1.0:  # what runs longer than is usual tells of a slow spell before it has ended
                rate *= late
            expected_ms = self._running_units * rate
            left_ms = max(expected_ms - elapsed_ms, _LEFT_MIN * expected_ms)
        return Report(
            worker=self.number,
            made_s=now,
            waiting=waiting,
            work_ms=left_ms + self._queued * rate,
            rate=rate,
            latency_ms=self._latency_ms(waiting),
            service_ms=self.service_ms,
            accepted=self.accepted[router],
            sequence=self._sequence,
        )

    def _latency_ms(self, waiting: int) -> float:
        kept = self._latencies.get(waiting)
        if kept is None:
            if not self._latencies:
                return self.service_ms * (waiting + 1)
            kept = self._latencies[min(self._latencies, key=lambda found: abs(found - waiting))]
        return sorted(kept)[len(kept) // 2]

    def left_ms(self, now: float) -> float:
        """The true work it has still to do, on a worker of speed 1 (batches aside)."""
        return self._queued_work + (self._work_between(now, self.ends_s) if self.running else 0.0)

    def pace(self, now: float) -> float:
        """What it truly does now, in milliseconds of a worker of speed 1 for each millisecond."""
        return self.speed * (self._slow_factor if bisect_right(self._spells, now) % 2 else 1.0)

    def free_at_s(self, now: float) -> float:
        """When all that it was given will be done, in truth (batches aside)."""
        begin_s = self.ends_s if self.running else now
        return self.finish_s(begin_s, self._queued_work) if self.queue else begin_s

    def finish_s(self, begin_s: float, work_ms: float) -> float:
        """When work that begins then will be done, through all slow spells."""
        spells, left_s, at_s = self._spells, work_ms / 1000.0 / self.speed, begin_s
        edge = bisect_right(spells, at_s)
        while True:
            pace = self._slow_factor if edge % 2 else 1.0
            until_s = spells[edge] if edge < len(spells) else float("inf")
            if at_s + left_s / pace <= until_s:
                return at_s + left_s / pace
            left_s -= (until_s - at_s) * pace
            at_s = until_s
            edge += 1

    def _work_between(self, from_s: float, to_s: float) -> float:
        spells, work_ms, at_s = self._spells, 0.0, from_s
        edge = bisect_right(spells, at_s)
        while at_s < to_s:
            until_s = min(spells[edge], to_s) if edge < len(spells) else to_s
            work_ms += (until_s - at_s) * 1000.0 * self.speed * (self._slow_factor if edge % 2 else 1.0)
            at_s = until_s
            edge += 1
        return work_ms
