"""What could be known at best: every worker's exact queue, the exact work of each request, even slow spells to come.

Both oracles are greedy: a request goes where it will be answered first, and is never moved again. They read for nothing
and know what is on its way, so their p99 is the yardstick; a policy that binds later than at arrival may pass it. Read
`router/policies/priced.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.policies.base import Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policies.base import Report, Setting, Task


class OnTheWay:  # mutable: requests that were sent and have not arrived
    """What all oracles of a run sent to each worker: (when it arrives, its work)."""

    __slots__ = ("_sent",)

    def __init__(self, count: int) -> None:
        self._sent: list[list[tuple[float, float]]] = [[] for _ in range(count)]

    def to(self, worker: int, now: float) -> list[tuple[float, float]]:
        """What will arrive at a worker."""
        coming = self._sent[worker]
        if coming and coming[0][0] <= now:
            coming[:] = [each for each in coming if each[0] > now]
        return coming

    def send(self, worker: int, at_s: float, work_ms: float) -> None:
        """One more is on its way."""
        self._sent[worker].append((at_s, work_ms))


class Greedy(Quiet):
    """Knows all that is: each worker's true remaining work and pace, and this request's own work; not the future."""

    def __init__(self, setting: Setting, way: OnTheWay) -> None:
        self._setting, self._way = setting, way

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The least time at the present pace."""
        setting, way = self._setting, self._way
        best, best_s = 0, float("inf")
        for worker, (node, reach_s) in enumerate(zip(setting.nodes, setting.reach_s, strict=True)):
            work_ms = node.left_ms(now) + task.work_ms
            for _, coming_ms in way.to(worker, now):
                work_ms += coming_ms
            done_s = work_ms / 1000.0 / node.pace(now) + 2.0 * reach_s
            if done_s < best_s:
                best, best_s = worker, done_s
        way.send(best, now + setting.reach_s[best], task.work_ms)
        return (best,)


class Clairvoyant(Quiet):
    """Knows all that is and all slow spells to come: when exactly each worker would be done."""

    def __init__(self, setting: Setting, way: OnTheWay) -> None:
        self._setting, self._way = setting, way

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """Tries them all."""
        setting, way = self._setting, self._way
        best, best_s = 0, float("inf")
        for worker, (node, reach_s) in enumerate(zip(setting.nodes, setting.reach_s, strict=True)):
            here_s = now + reach_s
            free_s = max(node.free_at_s(now), here_s)
            for _, work_ms in way.to(worker, now):
                free_s = node.finish_s(free_s, work_ms)
            done_s = node.finish_s(free_s, task.work_ms) + reach_s
            if done_s < best_s:
                best, best_s = worker, done_s
        way.send(best, now + setting.reach_s[best], task.work_ms)
        return (best,)
