"""Which requests a node takes, in which order they run, and on which executor.

Every queue has a bound, and a request that cannot be taken is refused at once (a nack: it never ran, so the caller may
go elsewhere). Waiting requests stay here, where they can be cancelled and expire; an executor gets the next one only
when it has little left to do. This module never sends and never reads a clock. Read `workers/dedupe.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from fabric.errors import DeadlineExceeded, Draining, Fate
from fabric.resident import any_refs
from workers.batching import BatchLine, in_order
from workers.bound import BoundLines
from workers.card_memory import CardMemory
from workers.desks import check_room, known_model, next_leg
from workers.expiry import Expiry
from workers.job import Job, JobState
from workers.placement import batch_desk, best_desk
from workers.resident import Residents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from workers.batchconfig import Batching
    from workers.desks import ExecutorDesk, ModelQueue

_SPARE: Final = 64
"""So many entries of jobs that left early are not worth a look at all of them."""
LOOK_AGAIN_S: Final = 0.005
"""After it was found better to wait for a busy executor than to take an idle one."""


class Admission:  # mutable: the node's queue
    """The models of a node, the desks of its executors, the requests that wait, and the residents they refer to."""

    def __init__(
        self, models: Iterable[ModelQueue], desks: tuple[ExecutorDesk, ...], queue_max: int, resident_bytes_max: int = 0
    ) -> None:
        self.residents = Residents(resident_bytes_max)
        self.card_memory = CardMemory(self.residents)
        self.models = {model.name: model for model in models}
        self.desks = desks
        self.draining = False
        self.refused_draining = 0
        """Requests that came while the node drained."""
        self.outstanding_us = 0
        """Work queued and in hand, by estimate."""
        self.on_change: Callable[[int], None] | None = None
        """Told the client of each job that comes or is over."""
        self._queue_max = queue_max
        self._waiting = self._queued_us = self._order = 0
        self._lined: dict[str, ModelQueue] = {}  # models with jobs in a line of their own
        self._in_lines = 0
        self._bound = BoundLines()
        self._again_s = self._fed_s = 0.0
        # Entries of jobs that left early stay until they come up or are half of the heap.
        self._line: list[tuple[int, int, Job]] = []
        self._expiry = Expiry()

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting

    def model(self, name: str) -> ModelQueue:
        """The model that a request names. Raises UnknownModel, ModelBroken or Draining: nobody ran it."""
        model = known_model(self.models, name)
        if self.draining:
            self.refused_draining += 1
            raise Draining("the node is draining; send the request to another one")
        return model

    def offer(self, job: Job, now: float, descriptors: bytes = b"") -> ExecutorDesk | None:
        """Takes a job: returns the executor that runs it now, or None when it waits.

        Raises DeadlineExceeded when its time is over, QueueFull when it would wait and may not, and as `claim` does.
        """
        if job.deadline_s <= now:
            raise DeadlineExceeded("the time was over when the request arrived; give it more", Fate.NEVER_RAN)
        job.work_us = job.model.speed.estimate_us(job.body_bytes)
        if named := any_refs(descriptors):
            self.card_memory.bind(job, descriptors)
        ticket, desk = job.ticket, None
        if ticket is not None:
            if not self._waiting and ticket.line.lets_pass and not ticket.alone:
                desk = batch_desk(self.desks, job.model, job.work_us, 0.0, now)
            if desk is None:
                full = not ticket.alone and ticket.line.is_full(job.level)
                check_room(job.model, self._waiting, self._queue_max, full=full)
        elif self._waiting > self._in_lines or (desk := self._desk_for(job, now)) is None:
            check_room(job.model, self._waiting, self._queue_max)
        if named:
            job.uses = self.card_memory.claim(job, descriptors)
            job.body_bytes += sum(use.kept.nbytes for use in job.uses if not use.fills)  # it reads them all the same
            job.work_us = job.model.speed.estimate_us(job.body_bytes)
        self._order += 1
        job.order = self._order
        if desk is None:
            self._enter(job)
        elif ticket is not None:
            ticket.line.in_flight += 1
        self.outstanding_us += job.work_us
        if self.on_change is not None:
            self.on_change(job.client_id)
        return desk

    def next_work(self, now: float) -> tuple[ExecutorDesk, list[Job]] | None:
        """What runs next, and where; the jobs leave the queue. None where nothing waits that could run now. Expired
        ones are left for `expire`."""
        self._again_s = 0.0
        job = self._first(now)
        if self._lined or self._bound.waiting:
            self._fed_s = now
            return self._next_of_lines(job, now)
        if job is None or (desk := self._desk_for(job, now)) is None:
            return None
        heappop(self._line)
        self._leave(job)
        return desk, [job]

    def reline(self, model: ModelQueue, batching: Batching | None) -> None:
        """From now on a model's requests wait so; those that wait already move."""
        old = model.line
        if (old.config if old is not None else None) == batching:
            return
        jobs = [job for job in self.waiting_jobs() if job.model is model]
        for job in jobs:
            self._leave(job)
        model.line = BatchLine(batching) if batching is not None else None
        for job in jobs:
            job.state = JobState.QUEUED
            job.ticket = None  # their descriptors were read for the old line; they run by themselves
            self._enter(job)

    def put_back(self, job: Job, *, alone: bool = False, later: ModelQueue | None = None) -> None:
        """A job that an executor had in hand waits again, at its old place, whatever the bounds: to run `alone` after a
        batch that its executor died of, or for the `later` leg of its ensemble."""
        job.state = JobState.QUEUED
        self._landed(job)
        self.outstanding_us += next_leg(job, later)
        if alone:
            assert job.ticket is not None, "it ran in a batch"
            job.ticket.runs_again()
        self._enter(job)

    @property
    def is_timed(self) -> bool:
        """Whether `next_due_s` may have something to say."""
        return bool(self._lined) or self._again_s > 0

    def withdraw(self, job: Job) -> None:
        """A waiting job is given up."""
        assert job.state is JobState.QUEUED, f"not waiting: {job}"
        self._leave(job)
        self._end(job)

    def over(self, job: Job) -> None:
        """A job that an executor had has come to its end, whichever."""
        self._landed(job)
        self._end(job)

    def _landed(self, job: Job) -> None:
        ticket = job.ticket
        if ticket is not None and not ticket.alone:
            ticket.line.in_flight -= 1
            ticket.mates = []

    def _end(self, job: Job) -> None:
        job.state = JobState.OVER
        job.end_legs()
        if job.uses:
            self.residents.ended(job.uses)
            job.uses = ()
        self.outstanding_us -= job.work_us
        if self.on_change is not None:
            self.on_change(job.client_id)

    def expire(self, now: float) -> list[Job]:
        """Withdraws the waiting jobs whose time is over, be it their own or what their model grants."""
        late = self._expiry.take(now)
        for job in late:
            self.withdraw(job)
        return late

    def next_look_s(self) -> float | None:
        """When the first waiting job expires, or work should be asked for although nothing came and nothing ended."""
        at_s = self._expiry.next_s()
        if self.is_timed:
            due = [self._again_s] if self._again_s and self._waiting else []
            lines = [model.line.due_s() for model in self._lined.values() if model.line is not None]
            due += [line_due_s for line_due_s in lines if line_due_s is not None and line_due_s > self._fed_s]
            return min([*due, at_s] if at_s is not None else due, default=None)
        return at_s

    def waiting_jobs(self) -> list[Job]:
        """All that wait, in no order."""
        found = [job for _, _, job in self._line if job.state is JobState.QUEUED] + self._bound.jobs()
        for model in self._lined.values():
            found += model.line.jobs() if model.line is not None else ()
        return found

    def _desk_for(self, job: Job, now: float) -> ExecutorDesk | None:
        desks = self.desks if job.only is None else tuple(desk for desk in self.desks if desk.number in job.only)
        if len(desks) == 1:
            return desks[0] if desks[0].has_room(now) else None
        return self._held(best_desk(desks, job.model, job.work_us, self._queued_us, now), now)

    def _held(self, desk: ExecutorDesk | None, now: float) -> ExecutorDesk | None:
        if desk is None and len(self.desks) > 1 and any(each.has_room(now) for each in self.desks):
            self._again_s = now + LOOK_AGAIN_S  # it is better to wait for a busy one, unless that turns out late
        return desk

    def _first(self, now: float) -> Job | None:
        """The first job that waits in the common queue and has time left."""
        line = self._line
        while line:
            job = line[0][2]
            if job.state is JobState.QUEUED and job.deadline_s > now:
                return job
            heappop(line)
        return None

    def _next_of_lines(self, single: Job | None, now: float) -> tuple[ExecutorDesk, list[Job]] | None:
        lines = [model.line for model in self._lined.values()]
        for head in in_order(single, lines, now, self._bound.heads(now) if self._bound.waiting else []):
            if head is single or head.only is not None:
                desk = self._desk_for(head, now)
                jobs = [head]
            else:
                assert head.ticket is not None, "it stood in a line"
                line = head.ticket.line
                choose = batch_desk if line.config.rows_max > 1 else best_desk
                desk = self._held(choose(self.desks, head.model, head.work_us, self._queued_us, now), now)
                jobs = line.take(now) if desk is not None else []
            if desk is None or not jobs:
                continue
            if head is single:
                heappop(self._line)
            for job in jobs:
                self._leave(job, taken=True)
                if job.ticket is not None and not job.ticket.alone:
                    job.ticket.mates = jobs if len(jobs) > 1 else []
                    job.ticket.line.in_flight += 1
            return desk, jobs
        return None

    def _enter(self, job: Job) -> None:
        self._waiting += 1
        self._queued_us += job.work_us
        job.model.waiting += 1
        self.tidy(_SPARE)
        ticket = job.ticket
        if job.only is not None:
            self._in_lines += 1
            self._bound.enter(job)
        elif ticket is None or ticket.alone:
            heappush(self._line, (job.level, job.order, job))
        else:
            self._in_lines += 1
            self._lined[job.model.name] = job.model
            ticket.line.enter(job)
        self._expiry.enter(job)

    def _leave(self, job: Job, *, taken: bool = False) -> None:
        """A job waits no more; one that was `taken` is out of its line already."""
        self._waiting -= 1
        self._queued_us -= job.work_us
        job.model.waiting -= 1
        job.state = JobState.OVER
        ticket = job.ticket
        if job.only is not None:
            self._in_lines -= 1
            self._bound.left()
        elif ticket is not None and not ticket.alone:
            self._in_lines -= 1
            if not taken:
                ticket.line.left(job)
            if not ticket.line.waiting:
                self._lined.pop(job.model.name, None)

    def tidy(self, spare: int = 0) -> None:
        """Lets go of jobs that left early, where more than `spare` of them stand beside as many that wait. They hold
        their tenants' memory."""
        if len(self._line) > 2 * (self._waiting - self._in_lines) + spare or not spare:
            self._line = [entry for entry in self._line if entry[2].state is JobState.QUEUED]
            heapify(self._line)
        self._expiry.tidy(self._waiting, spare)
        self._bound.tidy(spare)
        for model in () if spare else self._lined.values():
            if model.line is not None:
                model.line.tidy()
