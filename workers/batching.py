"""The queue of one model whose requests may run together: which of them do, when, and who has waited too long.

Requests of the same kind (everything but the number of their items) are joined, the most urgent and oldest first. A
batch goes when it is full, has a preferred size, or its oldest request has waited as long as it may. Refused and
withdrawn requests leave at once; only their entries stay until they come up. This module decides nothing about
executors: `workers/admission.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING, Final, final

from workers.job import DEFAULT_LEVEL, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable

    from workers.batchconfig import Batching
    from workers.job import Job

_SPARE: Final = 64
"""So many entries of jobs that left early are not worth a look at all of them."""


@final
class Ticket:  # mutable: a job's place in its line
    """What its `line` knows of a job: its `rows` and `kind`, when its time in the queue is over, whether it was delayed
    for that, the batch that it runs in, and whether it must run alone, outside of the line."""

    __slots__ = ("alone", "delayed", "died_with_others", "expires_s", "kind", "line", "mates", "rows")

    def __init__(self, line: BatchLine, rows: int, kind: bytes) -> None:
        self.line = line
        self.rows = rows
        self.kind = kind
        self.expires_s = 0.0
        self.delayed = False
        self.mates: list[Job] = []
        self.died_with_others = False
        self.alone = not 0 < rows <= line.config.rows_max  # whatever is wrong with it, the executor says so

    def runs_again(self) -> None:
        """Its executor died of its batch, so it runs once more by itself: in its line, where that keeps an order."""
        self.died_with_others, self.expires_s = True, inf
        self.alone = not self.line.config.ordered

    def latest_deadline_s(self, own_s: float) -> float:
        """Until when the batch that it runs in may take."""
        return max((job.deadline_s for job in self.mates), default=own_s)


@final
class _Bucket:  # mutable: the jobs of one kind, `again` of which have been in a batch and wait for no other
    __slots__ = ("again", "arrivals", "count", "heap", "rows")

    def __init__(self) -> None:
        self.heap: list[tuple[int, bool, int, Job]] = []
        self.arrivals: deque[Job] = deque()
        self.rows = self.count = self.again = 0


@final
class BatchLine:  # mutable: jobs come and go
    """The waiting jobs of one model, by kind. Every job in it has a ticket."""

    __slots__ = ("_buckets", "_levels", "config", "held_back", "in_flight", "waiting")

    def __init__(self, config: Batching) -> None:
        self.config = config
        self.waiting = 0
        self.in_flight = 0
        self.held_back = False
        """Nothing goes now: what went before is not far enough on."""
        self._buckets: dict[bytes, _Bucket] = {}
        self._levels: dict[int, int] = {}

    @property
    def lets_pass(self) -> bool:
        """Whether a job need not wait here for others, if an executor is free and nothing waits."""
        config = self.config
        waits = self.waiting or self.held_back or config.queue_delay_max_us
        return not (waits or (config.ordered and self.in_flight))

    def is_full(self, level: int) -> bool:
        """Whether no more of a level may wait."""
        size_max = self.config.policy_of(level).size_max
        return size_max > 0 and self._levels.get(level, 0) >= size_max

    def enter(self, job: Job) -> None:
        """A job waits; one that comes back stands at its old place."""
        ticket = job.ticket
        assert ticket is not None, "whoever waits here has a ticket"
        bucket = self._buckets.get(ticket.kind)
        if bucket is None:
            bucket = self._buckets[ticket.kind] = _Bucket()
        self.waiting += 1
        self._levels[job.level] = self._levels.get(job.level, 0) + 1
        bucket.count += 1
        bucket.again += ticket.died_with_others
        bucket.rows += ticket.rows
        heappush(bucket.heap, (job.level, ticket.delayed, job.order, job))
        if bucket.arrivals and job.order < bucket.arrivals[0].order:
            bucket.arrivals.appendleft(job)
        else:
            bucket.arrivals.append(job)
        _tidy(bucket, _SPARE)

    def left(self, job: Job) -> None:
        """A job waits no more, whatever became of it."""
        ticket = job.ticket
        assert ticket is not None, "whoever waited here has a ticket"
        bucket = self._buckets[ticket.kind]
        self.waiting -= 1
        self._levels[job.level] -= 1
        bucket.count -= 1
        bucket.again -= ticket.died_with_others
        bucket.rows -= ticket.rows
        if not bucket.count:
            del self._buckets[ticket.kind]  # and with it what entries are left

    def delay(self, job: Job) -> None:
        """A job has waited as long as it should, and runs after all others of its level."""
        ticket = job.ticket
        assert ticket is not None, "whoever waits here has a ticket"
        ticket.delayed = True
        bucket = self._buckets[ticket.kind]
        heappush(bucket.heap, (job.level, True, job.order, job))

    def due_s(self) -> float | None:
        """When a batch may go; the past where one may now, None where nothing waits, or what runs must end first."""
        if not self.waiting or self.held_back or (self.config.ordered and self.in_flight):
            return None
        if self.config.ordered:
            return self._due_s(self._first(self._buckets.values()))
        return min(self._due_s(bucket) for bucket in self._buckets.values())

    def head(self, now: float) -> Job | None:
        """The first job of the batch that would go now."""
        due = [bucket for bucket in self._buckets.values() if self._due_s(bucket) <= now]
        if not due or self.held_back or (self.config.ordered and self.in_flight):
            return None
        if self.config.ordered:
            first = self._first(self._buckets.values())
            return first.heap[0][3] if first in due else None
        return self._first(due).heap[0][3]

    def take(self, now: float) -> list[Job]:
        """The jobs of the batch that goes now, which leave the line; whose time is over stay for their timer."""
        head = self.head(now)
        if head is None or head.ticket is None:
            return []
        bucket = self._buckets[head.ticket.kind]
        target = self._target(bucket.rows)
        taken: list[Job] = []
        rows, by_itself = 0, False
        late: list[tuple[int, bool, int, Job]] = []
        while bucket.heap:
            entry = bucket.heap[0]
            job, ticket = entry[3], entry[3].ticket
            if ticket is None or not _is_live(entry):
                heappop(bucket.heap)
            elif job.deadline_s <= now:
                late.append(heappop(bucket.heap))
            elif taken and (by_itself or ticket.died_with_others or rows + ticket.rows > target):
                break
            else:
                heappop(bucket.heap)
                taken.append(job)
                rows, by_itself = rows + ticket.rows, ticket.died_with_others
        for entry in late:
            heappush(bucket.heap, entry)
        for job in taken:
            self.left(job)
        return taken

    def tidy(self) -> None:
        """Lets go of all jobs that left: they hold their tenants' memory."""
        for bucket in self._buckets.values():
            _tidy(bucket, 0)

    def jobs(self) -> list[Job]:
        """All that wait, in no order."""
        return [entry[3] for bucket in self._buckets.values() for entry in bucket.heap if _is_live(entry)]

    def _target(self, rows: int) -> int:
        """How many items a batch should have, of so many that wait."""
        if rows >= self.config.rows_max:
            return self.config.rows_max
        return max((size for size in self.config.preferred if size <= rows), default=rows)

    def _due_s(self, bucket: _Bucket) -> float:
        config = self.config
        if bucket.again or bucket.rows >= config.rows_max or (config.preferred and bucket.rows >= config.preferred[0]):
            return 0.0
        while bucket.arrivals[0].state is not JobState.QUEUED:
            bucket.arrivals.popleft()
        return bucket.arrivals[0].arrived_s + config.queue_delay_max_us / 1e6

    def _first(self, buckets: Iterable[_Bucket]) -> _Bucket:
        best: _Bucket | None = None
        for bucket in buckets:
            while not _is_live(bucket.heap[0]):
                heappop(bucket.heap)
            if best is None or bucket.heap[0][:3] < best.heap[0][:3]:
                best = bucket
        assert best is not None, "asked only while something waits"
        return best

    def __repr__(self) -> str:
        return f"<BatchLine {self.waiting} waiting in {len(self._buckets)} kinds, {self.in_flight} in flight>"


def in_order(single: Job | None, lines: list[BatchLine | None], now: float, bound: list[Job]) -> list[Job]:
    """The first job of the common queue, those of each line's next batch, and the first ones that are bound to some
    executors, in the order in which they should go."""
    found = [(job.level, job.order, job) for job in bound]
    if single is not None:
        found.append((single.level, single.order, single))
    for line in lines:
        head = line.head(now) if line is not None else None
        if line is not None and head is not None:
            # A line's own levels mean nothing to others.
            found.append((DEFAULT_LEVEL if line.config.levels else head.level, head.order, head))
    return [job for _, _, job in sorted(found)]


def _is_live(entry: tuple[int, bool, int, Job]) -> bool:
    job = entry[3]
    return job.state is JobState.QUEUED and job.ticket is not None and job.ticket.delayed == entry[1]


def _tidy(bucket: _Bucket, spare: int) -> None:
    """Lets go of jobs that left early, where more than `spare` of them stand beside as many that wait."""
    if len(bucket.heap) > 2 * bucket.count + spare or not spare:
        bucket.heap = [entry for entry in bucket.heap if _is_live(entry)]
        heapify(bucket.heap)
    if len(bucket.arrivals) > 2 * bucket.count + spare or not spare:
        bucket.arrivals = deque([job for job in bucket.arrivals if job.state is JobState.QUEUED])
