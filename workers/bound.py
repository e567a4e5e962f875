"""The waiting jobs that only some executors may run, as those whose tensors lie on a card: a line for each such set.

In the common queue one that waits for its card would hold up all others. Entries of jobs that left early stay until
they come up, or are half of their line. This module withdraws nothing: `workers/admission.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, final

from workers.job import JobState

if TYPE_CHECKING:
    from workers.job import Job


@final
class BoundLines:  # mutable: heaps
    """Bound jobs, in the order of their levels and arrival."""

    __slots__ = ("_lines", "waiting")

    def __init__(self) -> None:
        self._lines: dict[frozenset[int], list[tuple[int, int, Job]]] = {}
        self.waiting = 0

    def enter(self, job: Job) -> None:
        """A job waits."""
        assert job.only is not None, f"not bound: {job}"
        self.waiting += 1
        heappush(self._lines.setdefault(job.only, []), (job.level, job.order, job))

    def left(self) -> None:
        """A job waits no more, whose state says so."""
        self.waiting -= 1
        if not self.waiting:
            self._lines.clear()

    def heads(self, now: float) -> list[Job]:
        """The first job of each line that has time left."""
        found: list[Job] = []
        for line in self._lines.values():
            while line and (line[0][2].state is not JobState.QUEUED or line[0][2].deadline_s <= now):
                heappop(line)
            if line:
                found.append(line[0][2])
        return found

    def jobs(self) -> list[Job]:
        """All that wait, in no order."""
        return [job for line in self._lines.values() for _, _, job in line if job.state is JobState.QUEUED]

    def tidy(self, spare: int) -> None:
        """Lets go of jobs that left early, where more than `spare` of them stand beside as many that wait: they hold
        their tenants' memory."""
        if sum(map(len, self._lines.values())) <= 2 * self.waiting + spare and spare:
            return
        for only, line in self._lines.items():
            self._lines[only] = live = [entry for entry in line if entry[2].state is JobState.QUEUED]
            heapify(live)
