"""Which requests a node takes, in which order they run, and on which executor.

Every queue has a bound, and a request that cannot be taken is refused at once (a nack: it never ran, so the caller may
go elsewhere). Waiting requests stay here, where they can be cancelled and expire; an executor gets the next one only
when it has little left to do. This module never sends and never reads a clock. Read `workers/dedupe.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from fabric.errors import DeadlineExceeded, Draining, Fate, InvalidArgument, ModelBroken, QueueFull, UnknownModel
from fabric.frame import NO_SLOT
from fabric.resident import any_refs
from workers.job import Job, JobState
from workers.resident import Residents
from workers.speed import ModelSpeed
from workers.statistics import REJECTED, ModelTally

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fabric.frame import RequestFrame

NODE_QUEUE_MAX: Final = 4096
"""Waiting requests of all models together: at the small end of 100 us each, 0.4 s of work."""
DEFAULT_LEVEL: Final = 128
"""Where a request of priority 0 (not given) stands. As in Triton 1 is the highest; 255 is the lowest here."""
SLOT_ALIGN: Final = 64
"""Bodies and replies start at such a multiple, so that the tensors in them do too."""
IN_HAND_MAX: Final = 8
IN_HAND_WORK_US: Final = 1000
"""An executor gets another task while it has less than this to do: enough that it never waits for the node's loop
(about 100 us when the machine is busy), little enough that a cancel or an urgent request finds the queue here."""
IN_HAND_STALE_S: Final = 0.005
"""An executor that has ended nothing for so long gets no more, whatever was estimated: it is at something slow, and
what is put behind that can neither be cancelled nor go to another one."""

_SPARE: Final = 64
"""So many entries of jobs that left early are not worth a look at all of them."""
RESENDS_MAX: Final = 64
"""Kept replies that wait for one executor to send them again: they stand in no queue, so their number is bounded."""


class ModelQueue:  # mutable: counts what waits
    """One model's place in the node: its bound, its speed, what it has done, and why it is refused, if it is."""

    __slots__ = ("execution_timeout_s", "idempotent", "name", "queue_max", "refused", "speed", "tally", "waiting")

    def __init__(self, name: str, queue_max: int, execution_timeout_s: float | None, *, idempotent: bool) -> None:
        self.name = name
        self.queue_max = queue_max
        self.execution_timeout_s = execution_timeout_s
        self.idempotent = idempotent
        self.speed = ModelSpeed()
        self.tally = ModelTally("")
        self.waiting = 0
        self.refused = ""


class ExecutorDesk:  # mutable: what one executor has in hand
    """An executor as admission sees it: whether it takes work, and the tasks in its hands, oldest first."""

    __slots__ = ("in_hand", "moved_s", "number", "open", "work_us")

    def __init__(self, number: int) -> None:
        self.number = number
        self.open = False
        self.in_hand: dict[int, Job] = {}
        self.work_us = 0
        self.moved_s = 0.0
        """When it ended a task, or got one while it had none."""

    @property
    def resends(self) -> int:
        """Kept replies among its tasks."""
        return sum(job.resend for job in self.in_hand.values())

    def has_room(self, now: float) -> bool:
        """Whether it may get another task now."""
        if not self.open or not self.in_hand:
            return self.open
        little = self.work_us < IN_HAND_WORK_US and len(self.in_hand) < IN_HAND_MAX
        return little and now - self.moved_s < IN_HAND_STALE_S

    def give(self, task_no: int, job: Job, now: float) -> None:
        """A task goes to it."""
        job.state = JobState.HANDED_OVER
        if not self.in_hand:
            self.moved_s = now
        self.in_hand[task_no] = job
        self.work_us += job.work_us

    def take_back(self, task_no: int, now: float) -> Job | None:
        """A task is no longer with it; None for one that never was."""
        job = self.in_hand.pop(task_no, None)
        if job is not None:
            self.work_us -= job.work_us
            self.moved_s = now
        return job

    def __repr__(self) -> str:
        return f"<ExecutorDesk {self.number} {'open' if self.open else 'shut'}, {len(self.in_hand)} in hand>"


class Admission:  # mutable: the node's queue
    """The models of a node, the desks of its executors, the requests that wait, and the residents they refer to."""

    def __init__(
        self, models: Iterable[ModelQueue], desks: tuple[ExecutorDesk, ...], queue_max: int, resident_bytes_max: int = 0
    ) -> None:
        self.residents = Residents(resident_bytes_max)
        self.models = {model.name: model for model in models}
        self.desks = desks
        self.draining = False
        self.refused_draining = 0
        """Requests that came while the node drained."""
        self.outstanding_us = 0
        """Work queued and in hand, by estimate."""
        self._queue_max = queue_max
        self._waiting = 0
        self._order = 0
        self._entered = 0
        # Entries of jobs that left early stay until they come up or are half of the heap.
        self._line: list[tuple[int, int, Job]] = []
        self._expiry: list[tuple[float, int, Job]] = []

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._waiting

    def model(self, name: str) -> ModelQueue:
        """The model that a request names. Raises UnknownModel, ModelBroken or Draining: nobody ran it."""
        model = self.models.get(name)
        if model is None:
            known = ", ".join(sorted(self.models)[:8]) or "none"
            raise UnknownModel(f"this node has no model {name[:80]!r}; it has {known}")
        if model.refused:
            raise ModelBroken(f"model {name!r} cannot be served here: {model.refused}")
        if self.draining:
            self.refused_draining += 1
            raise Draining("the node is draining; send the request to another one")
        return model

    def offer(self, job: Job, now: float, descriptors: bytes = b"") -> ExecutorDesk | None:
        """Takes a job: returns the executor that runs it now, or None when it waits.

        Raises DeadlineExceeded when its time is over, QueueFull when it would wait and may not, ResidentMissing.
        """
        if job.deadline_s <= now:
            raise DeadlineExceeded("the time was over when the request arrived; give it more", Fate.NEVER_RAN)
        desk = None if self._waiting else self.free_desk(now)
        if desk is None:
            self._check_room(job.model)
        if any_refs(descriptors):
            job.uses = self.residents.claim(descriptors)
            job.body_bytes += sum(use.kept.nbytes for use in job.uses if not use.fills)  # it reads them all the same
        job.work_us = job.model.speed.estimate_us(job.body_bytes)
        self._order += 1
        job.order = self._order
        if desk is None:
            self._enter(job)
        self.outstanding_us += job.work_us
        return desk

    def free_desk(self, now: float) -> ExecutorDesk | None:
        """The executor with the least work among those that may get a task."""
        best: ExecutorDesk | None = None
        for desk in self.desks:
            if desk.has_room(now) and (best is None or desk.work_us < best.work_us):
                best = desk
        return best

    def next_job(self, now: float) -> Job | None:
        """The waiting job that runs next; expired ones are left for `expire`."""
        while self._line:
            _, _, job = heappop(self._line)
            if job.state is JobState.QUEUED and job.deadline_s > now:
                self._leave(job)
                return job
        return None

    def put_back(self, job: Job) -> None:
        """A job that an executor had in hand and never began waits again, at its old place, whatever the bounds."""
        job.state = JobState.QUEUED
        self._enter(job)

    def withdraw(self, job: Job) -> None:
        """A waiting job is given up."""
        assert job.state is JobState.QUEUED, f"not waiting: {job}"
        self._leave(job)
        self.over(job)

    def over(self, job: Job) -> None:
        """A job has come to its end, whichever."""
        job.state = JobState.OVER
        if job.uses:
            self.residents.ended(job.uses)
            job.uses = ()
        self.outstanding_us -= job.work_us

    def expire(self, now: float) -> list[Job]:
        """Withdraws the waiting jobs whose time is over."""
        late = []
        while self._expiry and self._expiry[0][0] <= now:
            _, _, job = heappop(self._expiry)
            if job.state is not JobState.QUEUED:
                continue
            if job.deadline_s > now:  # somebody more patient asked for the same
                self._await_expiry(job)
            else:
                self.withdraw(job)
                late.append(job)
        return late

    def next_expiry_s(self) -> float | None:
        """When the first waiting job expires."""
        while self._expiry and self._expiry[0][2].state is not JobState.QUEUED:
            heappop(self._expiry)
        return self._expiry[0][0] if self._expiry else None

    def waiting_jobs(self) -> list[Job]:
        """All that wait, in no order."""
        return [job for _, _, job in self._line if job.state is JobState.QUEUED]

    def _check_room(self, model: ModelQueue) -> None:
        if model.waiting >= model.queue_max:
            model.tally.failed(REJECTED, 0.0)
            raise QueueFull(f"{model.waiting} requests wait for model {model.name!r} already; try another node")
        if self._waiting >= self._queue_max:
            model.tally.failed(REJECTED, 0.0)
            raise QueueFull(f"{self._waiting} requests wait at this node already; try another node")

    def _enter(self, job: Job) -> None:
        self._waiting += 1
        job.model.waiting += 1
        self.tidy(_SPARE)
        heappush(self._line, (job.level, job.order, job))
        self._await_expiry(job)

    def _await_expiry(self, job: Job) -> None:
        self._entered += 1  # tells apart the entries of a job that came back
        heappush(self._expiry, (job.deadline_s, self._entered, job))

    def _leave(self, job: Job) -> None:
        self._waiting -= 1
        job.model.waiting -= 1
        job.state = JobState.OVER

    def tidy(self, spare: int = 0) -> None:
        """Lets go of jobs that left early, where more than `spare` of them stand beside as many that wait. They hold
        their tenants' memory."""
        if len(self._line) > 2 * self._waiting + spare or not spare:
            self._line = [entry for entry in self._line if entry[2].state is JobState.QUEUED]
            heapify(self._line)
        if len(self._expiry) > 2 * self._waiting + spare or not spare:
            self._expiry = [entry for entry in self._expiry if entry[2].state is JobState.QUEUED]
            heapify(self._expiry)


def check_places(request: RequestFrame, arena_bytes: int) -> None:
    """Raises InvalidArgument unless inputs and reply lie in the tenant's arena: executors rely on it."""
    body_at, reply_at = request.body_offset, request.reply_offset
    if body_at == NO_SLOT:
        if request.body_bytes:
            raise InvalidArgument(f"{request.body_bytes} bytes of inputs lie nowhere; write them into the arena")
    elif body_at % SLOT_ALIGN or body_at + request.body_bytes > arena_bytes:
        raise InvalidArgument(
            f"inputs of {request.body_bytes} bytes at {body_at} do not lie in the arena of {arena_bytes},"
            f" at a multiple of {SLOT_ALIGN}; lease their place"
        )
    if reply_at != NO_SLOT and (reply_at % SLOT_ALIGN or reply_at + request.reply_capacity > arena_bytes):
        raise InvalidArgument(
            f"a reply of {request.reply_capacity} bytes at {reply_at} does not lie in the arena of {arena_bytes},"
            f" at a multiple of {SLOT_ALIGN}; lease its place"
        )
