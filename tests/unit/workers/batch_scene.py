"""A node's queue with one model that batches, where time is said and executors do what a test says."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from fabric.dtypes import DType
from fabric.layout import TensorSpec, layout_of
from workers.admission import Admission
from workers.desks import ExecutorDesk, ModelQueue
from workers.job import DEFAULT_LEVEL, Job, Waiter

if TYPE_CHECKING:
    from workers.batchconfig import Batching

WAITER = cast("Waiter", object())


def descriptors(rows: int, width: int = 2) -> bytes:
    return layout_of((TensorSpec.of("x", DType.FP32, (rows, width)),)).encoded


class Scene:
    """One executor and one model that batches; time is said."""

    def __init__(self, batching: Batching, executors: int = 1, model_max: int = 1000) -> None:
        self.model = ModelQueue("m", model_max, None, idempotent=True)
        self.model.speed.warmed(100)
        self.desks = tuple(ExecutorDesk(number) for number in range(executors))
        for desk in self.desks:
            desk.open = True
        self.admission = Admission([self.model], self.desks, 100_000)
        self.admission.reline(self.model, batching)
        self.number = 0

    def offer(self, rows: int = 1, *, now: float = 0.0, width: int = 2, priority: int = 0, lasts_s: float = 1e3) -> Job:
        self.number += 1
        level = priority or DEFAULT_LEVEL
        job = Job(self.model, 1, self.number, WAITER, now, now + lasts_s, level, 64)
        self.model.line_up(job, descriptors(rows, width), priority)
        desk = self.admission.offer(job, now)
        if desk is not None:  # an executor has nothing else to do
            desk.give(self.number, job, now)
        return job

    def open(self, *, yes: bool) -> None:
        for desk in self.desks:
            desk.open = yes

    def take(self, now: float = 0.0) -> list[int]:
        """The numbers of the next batch, which its executor has from then on."""
        work = self.admission.next_work(now)
        if work is None:
            return []
        for job in work[1]:
            work[0].give(job.request_no, job, now)
        return [job.request_no for job in work[1]]

    def done(self, numbers: list[int], now: float = 0.0) -> None:
        for desk in self.desks:
            for number in numbers:
                job = desk.take_back(number, now)
                if job is not None:
                    self.admission.over(job)
