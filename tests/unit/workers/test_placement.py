"""Work goes where it ends first, on executors of unlike speed too: in a simulation that a pure admission runs in."""

from __future__ import annotations

import heapq
from typing import cast

import pytest

from workers.admission import Admission
from workers.blame import learn
from workers.desks import ExecutorDesk, ModelQueue
from workers.handover import KEPT, LEADS, RAN, Spent
from workers.job import DEFAULT_LEVEL, Job, Waiter
from workers.placement import best_desk

WAITER = cast("Waiter", object())


class Sim:
    """Executors of given run times and callers in closed loops; time is said. Events are (time, order, what)."""

    def __init__(self, runs_us: list[float], callers: int) -> None:
        self.runs_us = runs_us
        self.model = ModelQueue("m", 10_000, None, idempotent=True)
        self.desks = tuple(ExecutorDesk(number) for number in range(len(runs_us)))
        for desk in self.desks:
            desk.open = True
        self.admission = Admission([self.model], self.desks, 10_000)
        self.now = 0.0
        self.busy_until = [0.0] * len(runs_us)
        self.ran = [0] * len(runs_us)
        self.took: list[float] = []
        self.events: list[tuple[float, int, Job, ExecutorDesk]] = []
        self.number = 0
        for _ in range(callers):
            self.ask()

    def ask(self) -> None:
        self.number += 1
        job = Job(self.model, 1, self.number, WAITER, self.now, self.now + 100.0, DEFAULT_LEVEL, 64)
        desk = self.admission.offer(job, self.now)
        if desk is not None:
            self.give(desk, job)

    def give(self, desk: ExecutorDesk, job: Job) -> None:
        desk.give(job.request_no, job, self.now)
        end = max(self.now, self.busy_until[desk.number]) + self.runs_us[desk.number] / 1e6
        self.busy_until[desk.number] = end
        heapq.heappush(self.events, (end, job.request_no, job, desk))

    def feed(self) -> None:
        while (work := self.admission.next_work(self.now)) is not None:
            for job in work[1]:
                self.give(work[0], job)

    def run(self, until_s: float) -> None:
        while self.events and self.events[0][0] <= until_s:
            look = self.admission.next_look_s()
            if look is not None and look < self.events[0][0]:
                self.now = max(self.now, look)
                self.feed()
                continue
            self.now, _, job, desk = heapq.heappop(self.events)
            desk.take_back(job.request_no, self.now)
            self.admission.over(job)
            run_us = int(self.runs_us[desk.number])
            spent = Spent(run_us, 0, 0, 0, 1, 1)
            learn(job, RAN | KEPT | LEADS, spent, self.now, desk if len(self.desks) > 1 else None)
            self.ran[desk.number] += 1
            self.took.append(self.now - job.arrived_s)
            self.feed()
            self.ask()
        self.now = until_s


@pytest.mark.parametrize("run_us", [200.0, 2000.0, 20_000.0])
def test_shares_follow_speeds_one_to_four_and_a_throttle_within_five_seconds(run_us: float) -> None:
    sim = Sim([run_us, 4 * run_us], callers=16)
    sim.run(5.0)
    before = list(sim.ran)
    sim.run(10.0)
    fast, slow = (now - then for now, then in zip(sim.ran, before, strict=True))
    assert 0.9 * 4 <= fast / slow <= 1.1 * 4
    sim.runs_us[0] *= 4  # the fast one is throttled
    sim.run(15.0)
    before = list(sim.ran)
    sim.run(20.0)
    first, second = (now - then for now, then in zip(sim.ran, before, strict=True))
    assert 0.9 <= first / second <= 1.1


def test_a_lone_caller_is_served_by_the_fast_one() -> None:
    sim = Sim([40_000.0, 2000.0], callers=1)
    sim.run(2.0)
    assert sim.ran[0] <= 3  # until it was known
    assert sorted(sim.took)[len(sim.took) // 2] < 0.0025


def test_two_callers_share_the_fast_one_where_the_slow_one_takes_longer_than_waiting() -> None:
    sim = Sim([40_000.0, 2000.0], callers=2)
    sim.run(2.0)
    before = list(sim.ran)
    sim.run(4.0)
    assert sim.ran[0] - before[0] <= 2
    assert sorted(sim.took[-500:])[250] < 0.0045


def test_all_of_equal_executors_work() -> None:
    sim = Sim([2000.0] * 4, callers=8)
    sim.run(2.0)
    assert max(sim.ran) - min(sim.ran) <= 0.1 * max(sim.ran)
    assert sum(sim.ran) > 0.95 * 4 * 1000


def test_one_that_is_late_is_not_waited_for() -> None:
    slow, fast = ExecutorDesk(0), ExecutorDesk(1)
    model = ModelQueue("m", 10, None, idempotent=True)
    slow.open = fast.open = True
    slow.pace["m"], fast.pace["m"] = 8.0, 0.5
    job = Job(model, 1, 1, WAITER, 0.0, 100.0, DEFAULT_LEVEL, 64)
    job.work_us = 2000
    fast.give(1, job, 0.0)
    assert best_desk((slow, fast), model, 2000.0, 0.0, 0.0005) is None  # better to wait
    assert best_desk((slow, fast), model, 2000.0, 0.0, 0.5) is slow
    assert best_desk((slow, fast), model, 2000.0, 100_000.0, 0.0005) is slow  # others wait already


def test_only_those_that_have_the_model_are_asked() -> None:
    desks = ExecutorDesk(0), ExecutorDesk(1)
    for desk in desks:
        desk.open = True
    model = ModelQueue("m", 10, None, idempotent=True)
    model.holders = frozenset({1})
    assert best_desk(desks, model, 10.0, 0.0, 0.0) is desks[1]
