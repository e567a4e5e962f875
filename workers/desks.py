"""What admission knows of models and of executors: their bounds and speeds, and who has what in hand.

They are records with the questions that can be asked of them. Nothing is decided here: `workers/admission.py` and
`workers/placement.py` do. Read the first next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from fabric.descriptors import rows_and_kind
from fabric.errors import ModelBroken, QueueFull, UnknownModel
from workers.batching import Ticket
from workers.job import JobState
from workers.speed import ModelSpeed
from workers.statistics import REJECTED, ModelTally

if TYPE_CHECKING:
    from workers.batching import BatchLine
    from workers.job import Job
    from workers.legs import Leg

IN_HAND_MAX: Final = 8
IN_HAND_WORK_US: Final = 1000
"""An executor gets another task while it has less than this to do: enough that it never waits for the node's loop
(about 100 us when the machine is busy), little enough that a cancel or an urgent request finds the queue here."""
IN_HAND_STALE_S: Final = 0.005
"""An executor that has ended nothing for so long gets no more, whatever was estimated: it is at something slow, and
what is put behind that can neither be cancelled nor go to another one."""
RESENDS_MAX: Final = 64
"""Kept replies that wait for one executor to send them again: they stand in no queue, so their number is bounded."""
PACE_MAX: Final = 64.0
"""Executors of one node are this far apart at most, whatever one run says."""
PACE_WEIGHT: Final = 0.2
"""Of the newest run: about the last ten runs count."""


class ModelQueue:  # mutable: counts what waits
    """One model's place in the node: its bound, its speed, what it has done, and why it is refused, if it is."""

    __slots__ = (
        "between", "between_bytes", "between_max", "execution_timeout_s", "holders", "idempotent", "leg", "legs",
        "line", "name", "queue_max", "refused", "speed", "tally", "waiting", "whole",
    )  # fmt: skip

    def __init__(self, name: str, queue_max: int, execution_timeout_s: float | None, *, idempotent: bool) -> None:
        self.name = name
        self.queue_max = queue_max
        self.execution_timeout_s = execution_timeout_s
        self.idempotent = idempotent
        self.speed = ModelSpeed()
        self.tally = ModelTally("")
        self.waiting = 0
        self.refused = ""
        self.line: BatchLine | None = None
        """Where its requests wait by themselves: to run together, or because not every executor has the model."""
        self.holders: frozenset[int] | None = None
        """The executors that have it, by number; None where all do."""
        self.leg: Leg | None = None
        """Of an ensemble in legs: which steps of it this is the queue for, the first leg's being the ensemble's own."""
        self.legs: tuple[ModelQueue, ...] = ()
        """The queues of an ensemble's later legs."""
        self.whole: ModelQueue | None = None
        """The ensemble that this is a later leg of."""
        self.between = self.between_max = self.between_bytes = 0
        """How many of its requests are past the first leg, and at most; what they may take on each card."""

    def is_of(self, other: ModelQueue) -> bool:
        """Whether it is that queue, or one of its later legs."""
        return self is other or self.whole is other

    def goes_on(self, more: int) -> None:
        """So many more requests are past the first leg, which waits while they are too many."""
        self.between += more
        if self.line is not None:
            self.line.held_back = self.between >= self.between_max

    def line_up(self, job: Job, descriptors: bytes, priority: int) -> None:
        """Gives a job its place in the model's own line, by its request's descriptors and priority."""
        line = self.line
        assert line is not None, "asked only of a model that has one"
        rows, kind = (1, b"") if line.config.rows_max == 1 else rows_and_kind(descriptors)
        ticket = job.ticket = Ticket(line, rows, kind)
        if line.config.levels:
            job.level = line.config.level_of(priority)
        timeout_us = line.config.policy_of(job.level).timeout_us
        ticket.expires_s = job.arrived_s + timeout_us / 1e6 if timeout_us else inf


def known_model(models: dict[str, ModelQueue], name: str) -> ModelQueue:
    """The model of a name. Raises UnknownModel, or ModelBroken for one that is refused."""
    model = models.get(name)
    if model is None:
        known = ", ".join(sorted(models)[:8]) or "none"
        raise UnknownModel(f"this node has no model {name[:80]!r}; it has {known}")
    if model.refused:
        raise ModelBroken(f"model {name!r} cannot be served here: {model.refused}")
    return model


def next_leg(job: Job, later: ModelQueue | None) -> int:
    """A job is about to wait for its next leg, if any; gives by how much that leg's work is more than that of the one
    that has run."""
    if later is None:
        return 0
    whole, line = later.whole, later.line
    assert whole is not None, "a later leg is one of an ensemble"
    assert line is not None, "and waits in a line of its own"
    if job.model is whole:
        whole.goes_on(1)
    job.model = later
    before_us, job.work_us = job.work_us, later.speed.estimate_us(job.body_bytes)
    job.ticket = Ticket(line, 1, b"")
    job.ticket.expires_s = inf
    return job.work_us - before_us


def check_room(model: ModelQueue, waiting: int, queue_max: int, *, full: bool = False) -> None:
    """Raises QueueFull where no more may wait for a model (its own line may be `full`), or at the node."""
    if full or model.waiting >= model.queue_max:
        told = f"{model.waiting} requests wait for model {model.name!r} already"
    elif waiting >= queue_max:
        told = f"{waiting} requests wait at this node already"
    else:
        return
    model.tally.failed(REJECTED, 0.0)
    raise QueueFull(f"{told}; try another node")


class ExecutorDesk:  # mutable: what one executor has in hand
    """An executor as admission sees it: whether it takes work, and the tasks in its hands, oldest first."""

    __slots__ = ("in_hand", "moved_s", "number", "open", "pace", "work_us")

    def __init__(self, number: int) -> None:
        self.number = number
        self.open = False
        self.in_hand: dict[int, Job] = {}
        self.work_us = 0
        self.moved_s = 0.0
        """When it ended a task, or got one while it had none."""
        self.pace: dict[str, float] = {}
        """By model: how long it takes beside what is expected of any executor."""

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

    def learn(self, model: str, compute_us: int, expected_us: int) -> None:
        """A run took so long, and this was expected of any executor."""
        ratio = min(PACE_MAX, max(1 / PACE_MAX, compute_us / max(expected_us, 1)))
        known = self.pace.get(model)
        self.pace[model] = ratio if known is None else known + PACE_WEIGHT * (ratio - known)

    def left_us(self, now: float) -> float:
        """What is left to do, at its own pace; negative where it is late."""
        pace = self.pace
        work_us = 0.0
        for job in self.in_hand.values():
            work_us += job.work_us * pace.get(job.model.name, 1.0)
        return work_us - (now - self.moved_s) * 1e6 if self.in_hand else 0.0

    def __repr__(self) -> str:
        return f"<ExecutorDesk {self.number} {'open' if self.open else 'shut'}, {len(self.in_hand)} in hand>"
