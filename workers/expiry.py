"""When the time of waiting jobs is over: their own, or what their model grants in its queue.

Entries of jobs that left early stay until they come up, or are half of the heap. This module withdraws nothing:
`workers/admission.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, final

from workers.job import JobState

if TYPE_CHECKING:
    from workers.job import Job


@final
class Expiry:  # mutable: a heap of times
    """The waiting jobs by the time at which something is over for them."""

    __slots__ = ("_entered", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Job]] = []
        self._entered = 0

    def enter(self, job: Job) -> None:
        """A job waits."""
        self._entered += 1  # tells apart the entries of a job that came back
        ticket = job.ticket
        at_s = job.deadline_s if ticket is None or ticket.delayed else min(job.deadline_s, ticket.expires_s)
        heappush(self._heap, (at_s, self._entered, job))

    def take(self, now: float) -> list[Job]:
        """The jobs whose time is over. Those that their model only delays stay, and go behind the others."""
        late: dict[Job, None] = {}  # in order, each once: a job that came back stands in the heap twice
        while self._heap and self._heap[0][0] <= now:
            _, _, job = heappop(self._heap)
            if job.state is not JobState.QUEUED:
                continue
            ticket = job.ticket
            if job.deadline_s <= now:
                late[job] = None
            elif ticket is None or ticket.alone or ticket.delayed or ticket.expires_s > now:
                self.enter(job)  # somebody more patient asked for the same
            elif ticket.line.config.policy_of(job.level).delays:
                ticket.line.delay(job)
                self.enter(job)
            else:
                late[job] = None
        return list(late)

    def next_s(self) -> float | None:
        """When the next one comes up."""
        while self._heap and self._heap[0][2].state is not JobState.QUEUED:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def tidy(self, waiting: int, spare: int) -> None:
        """Lets go of jobs that left early, where more than `spare` of them stand beside as many that wait."""
        if len(self._heap) > 2 * waiting + spare or not spare:
            self._heap = [entry for entry in self._heap if entry[2].state is JobState.QUEUED]
            heapify(self._heap)
