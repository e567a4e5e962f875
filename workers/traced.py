"""What traced requests took on this node, kept until whoever traces them asks for it.

Executors measure every request for its model's statistics; of those that came with the flag `TRACED` the figures are
kept one by one too. Nothing waits for anybody: the oldest ones go where nobody asks. This module reads no clock. Read
`workers/reception.py` for where they come from, `workers/control.py` for who asks.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from fabric.control import TracedRun

if TYPE_CHECKING:
    from workers.handover import Spent
    from workers.job import Job

KEPT_MAX: Final = 4096
"""A front door traces a hundred requests a second at most, and asks each second."""


class TracedRuns:  # mutable: a queue with a bound
    """The latest traced requests."""

    def __init__(self) -> None:
        self._runs: deque[TracedRun] = deque(maxlen=KEPT_MAX)

    def ran(self, job: Job, spent: Spent, holder: tuple[int, int]) -> None:
        """A traced request ran on `holder` (executor, generation)."""
        infer_us = max(0, spent.compute_us - spent.input_us - spent.output_us)
        self._runs.append(
            TracedRun(
                job.client_id, job.request_no, int(job.arrived_s * 1e6), spent.queue_us, spent.input_us, infer_us,
                spent.output_us, spent.rows, spent.batch_rows, *holder,
            )
        )  # fmt: skip

    def take(self) -> tuple[TracedRun, ...]:
        """All that are kept, which are forgotten with it."""
        runs = tuple(self._runs)
        self._runs.clear()
        return runs
