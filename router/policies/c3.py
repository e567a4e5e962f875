"""C3 (NSDI 2015): scores every replica by latency and by the cube of its queue, each caller charged for all callers.

    score = (response - service) + (1 + own requests out * callers + queue)^3 * service

The cube keeps callers from herding to a fast worker with a long queue. Queue and service time come with the answers and
are averaged over the last few. The per-server rate limit is left out: these workers never push back. Read
`router/policies/prequal.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.policies.base import Quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.policies.base import Answered, Report, Setting, Task

_KEEP = 0.1
"""Of the old mean when a new sample comes (the paper's EWMA weighs the new one 0.9)."""


class C3(Quiet):  # mutable: learns
    """All workers are scored for each request."""

    def __init__(self, setting: Setting) -> None:
        self._rng, self._routers = setting.rng, setting.routers
        self._out = [0] * setting.count
        self._queue = [0.0] * setting.count
        self._service_ms = [0.0] * setting.count
        self._response_ms = [0.0] * setting.count

    def choose(self, task: Task, reports: Sequence[Report], now: float) -> tuple[int, ...]:
        """The least score; one that never answered scores least of all, unless asked already."""
        best, best_score = 0, float("inf")
        routers, rng = self._routers, self._rng
        found = zip(self._out, self._queue, self._service_ms, self._response_ms, strict=True)
        for worker, (out, queue, service_ms, response_ms) in enumerate(found):
            score = response_ms - service_ms + (1.0 + out * routers + queue) ** 3 * service_ms
            if not service_ms:
                score = out * 1e9
            if score < best_score or (score == best_score and rng.random() < 0.5):
                best, best_score = worker, score
        self._out[best] += 1
        return (best,)

    def answered(self, task: Task, answer: Answered, now: float) -> None:
        """Averages what came with the answer."""
        worker = answer.worker
        self._out[worker] -= 1
        known = self._service_ms[worker] > 0.0
        keep = _KEEP if known else 0.0
        self._queue[worker] = keep * self._queue[worker] + (1.0 - keep) * answer.report.waiting
        self._service_ms[worker] = keep * self._service_ms[worker] + (1.0 - keep) * answer.compute_ms
        self._response_ms[worker] = keep * self._response_ms[worker] + (1.0 - keep) * answer.took_ms
