"""Who is taken, in which order, and by which executor."""

from __future__ import annotations

from typing import cast

import pytest

from fabric.errors import (
    DeadlineExceeded,
    Draining,
    Fate,
    InvalidArgument,
    ModelBroken,
    OverspillError,
    QueueFull,
    UnknownModel,
)
from fabric.frame import NO_SLOT, RequestFrame
from workers.admission import Admission
from workers.desks import IN_HAND_MAX, IN_HAND_STALE_S, IN_HAND_WORK_US, ExecutorDesk, ModelQueue
from workers.job import DEFAULT_LEVEL, Job, JobState, Waiter
from workers.places import check_places

WAITER = cast("Waiter", object())


class Scene:
    """A node with some executors, and jobs that are told apart by number."""

    def __init__(self, executors: int = 1, queue_max: int = 10, model_max: int = 5) -> None:
        self.model = ModelQueue("m", model_max, None, idempotent=False)
        self.desks = tuple(ExecutorDesk(number) for number in range(executors))
        for desk in self.desks:
            desk.open = True
        self.admission = Admission([self.model], self.desks, queue_max)
        self.tasks = 0

    def job(self, number: int, level: int = DEFAULT_LEVEL, deadline_s: float = 100.0, body_bytes: int = 0) -> Job:
        return Job(self.model, 1, number, WAITER, 0.0, deadline_s, level, body_bytes)

    def offer(self, number: int, level: int = DEFAULT_LEVEL, deadline_s: float = 100.0, now: float = 0.0) -> Job:
        job = self.job(number, level, deadline_s)
        desk = self.admission.offer(job, now)
        if desk is not None:
            self.give(desk, job)
        return job

    def give(self, desk: ExecutorDesk, job: Job) -> int:
        self.tasks += 1
        desk.give(self.tasks, job, 0.0)
        return self.tasks

    def order(self) -> list[int]:
        found = []
        for desk in self.desks:
            desk.open = True
            desk.in_hand.clear()
            desk.work_us = 0
        while (work := self.admission.next_work(0.0)) is not None:
            found += [job.request_no for job in work[1]]
        return found


def test_an_idle_executor_gets_the_job_at_once_and_more_only_while_its_work_is_short() -> None:
    scene = Scene()
    assert scene.offer(1).state is JobState.HANDED_OVER
    assert scene.offer(2).state is JobState.QUEUED  # an unknown model counts a millisecond
    scene = Scene()
    scene.model.speed.warmed(10)
    states = [scene.offer(number).state for number in range(IN_HAND_MAX + 1)]
    assert states == [JobState.HANDED_OVER] * IN_HAND_MAX + [JobState.QUEUED]


def test_the_executor_with_the_least_work_is_chosen() -> None:
    scene = Scene(executors=3)
    scene.model.speed.warmed(IN_HAND_WORK_US // 3)
    for number in range(4):
        scene.offer(number)
    assert [len(desk.in_hand) for desk in scene.desks] == [2, 1, 1]
    scene.desks[1].open = False
    scene.offer(9)
    assert [len(desk.in_hand) for desk in scene.desks] == [2, 1, 2]


def test_nothing_is_put_behind_a_run_that_turns_out_slow() -> None:
    scene = Scene(executors=2)
    scene.model.speed.warmed(10)
    scene.offer(1)
    late = IN_HAND_STALE_S
    assert scene.desks[0].has_room(late / 2)
    assert not scene.desks[0].has_room(late)
    assert scene.desks[1].has_room(late)
    scene.desks[1].open = False
    assert scene.offer(2, now=late).state is JobState.QUEUED
    scene.desks[0].take_back(1, late)
    work = scene.admission.next_work(late)
    assert work is not None
    assert work[0] is scene.desks[0]


def test_priorities_then_arrival_order() -> None:
    scene = Scene(model_max=10)
    scene.desks[0].open = False
    for number, level in ((1, DEFAULT_LEVEL), (2, 1), (3, 200), (4, 1), (5, DEFAULT_LEVEL)):
        scene.offer(number, level)
    assert scene.order() == [2, 4, 1, 5, 3]


def test_new_ones_do_not_overtake_the_queue_when_an_executor_gets_free() -> None:
    scene = Scene()
    scene.offer(1)
    scene.offer(2)
    scene.desks[0].take_back(1, 0.0)
    assert scene.offer(3).state is JobState.QUEUED
    assert scene.order() == [2, 3]


def test_what_comes_back_stands_where_it_stood_whatever_the_bounds() -> None:
    scene = Scene(model_max=2)
    first = scene.offer(1)
    scene.offer(2)
    scene.offer(3)
    scene.desks[0].take_back(1, 0.0)
    scene.admission.put_back(first)
    assert scene.admission.waiting == 3
    assert scene.order() == [1, 2, 3]


def test_bounds_of_model_and_node() -> None:
    scene = Scene(queue_max=10, model_max=2)
    for number in range(3):
        scene.offer(number)
    with pytest.raises(QueueFull, match="wait for model 'm'"):
        scene.offer(9)
    scene = Scene(queue_max=2, model_max=10)
    for number in range(3):
        scene.offer(number)
    before = scene.admission.outstanding_us
    with pytest.raises(QueueFull, match="wait at this node"):
        scene.offer(9)
    assert scene.admission.outstanding_us == before


def test_expiry_takes_the_late_ones_only_and_once() -> None:
    scene = Scene()
    scene.offer(1)
    late, later, fine = scene.offer(2, deadline_s=1.0), scene.offer(3, deadline_s=2.0), scene.offer(4)
    assert scene.admission.next_look_s() == 1.0
    assert scene.admission.expire(0.999) == []
    assert scene.admission.expire(1.0) == [late]
    assert scene.admission.next_look_s() == 2.0
    scene.desks[0].take_back(1, 2.0)
    assert scene.admission.next_work(2.0) == (scene.desks[0], [fine])  # a late one is never handed over
    assert scene.admission.expire(2.0) == [later]
    assert scene.admission.waiting == 0
    assert scene.admission.next_look_s() is None


def test_one_that_waited_and_came_back_expires_once() -> None:
    """Its executor died before it began: it waits again, and stands twice among the times of expiry."""
    scene = Scene()
    first, waited = scene.offer(1), scene.offer(2, deadline_s=1.0)
    scene.desks[0].take_back(1, 0.1)
    scene.admission.over(first)
    work = scene.admission.next_work(0.1)
    assert work == (scene.desks[0], [waited])
    task_no = scene.give(scene.desks[0], waited)
    scene.desks[0].open = False
    assert scene.desks[0].take_back(task_no, 0.2) is waited
    scene.admission.put_back(waited)
    assert scene.admission.expire(2.0) == [waited]
    assert scene.admission.waiting == 0


def test_withdrawn_ones_leave_the_order_and_the_sum_alone() -> None:
    scene = Scene()
    scene.offer(1)
    gone, stays = scene.offer(2), scene.offer(3)
    scene.admission.withdraw(gone)
    assert scene.admission.waiting_jobs() == [stays]
    assert scene.order() == [3]
    assert scene.model.waiting == 0


def test_outstanding_work_returns_to_zero() -> None:
    scene = Scene()
    jobs = [scene.offer(number) for number in range(4)]
    assert scene.admission.outstanding_us > 0
    scene.admission.withdraw(jobs[3])
    scene.desks[0].take_back(1, 0.0)
    scene.admission.put_back(jobs[0])
    while (work := scene.admission.next_work(0.0)) is not None:
        scene.admission.over(work[1][0])
    assert scene.admission.outstanding_us == 0


def test_heaps_do_not_grow_with_jobs_that_left() -> None:
    scene = Scene(model_max=10)
    scene.desks[0].open = False
    for number in range(5000):
        scene.admission.withdraw(scene.offer(number))
    assert len(scene.admission._line) < 200
    assert len(scene.admission._expiry._heap) < 200


@pytest.mark.parametrize(
    ("error", "spoil"),
    [
        (UnknownModel, lambda scene: scene.admission.model("other")),
        (Draining, lambda scene: setattr(scene.admission, "draining", True) or scene.admission.model("m")),
        (ModelBroken, lambda scene: setattr(scene.model, "refused", "why") or scene.admission.model("m")),
        (DeadlineExceeded, lambda scene: scene.offer(1, deadline_s=1.0, now=1.0)),
    ],
)
def test_nacks_never_ran(error: type[OverspillError], spoil: object) -> None:
    assert callable(spoil)
    with pytest.raises(error) as caught:
        spoil(Scene())
    assert caught.value.fate is Fate.NEVER_RAN


@pytest.mark.parametrize(
    ("places", "good"),
    [
        ((0, 4096, 4096, 4096), True),
        ((NO_SLOT, 0, NO_SLOT, 0), True),
        ((4096, 4096, 0, 64), True),
        ((NO_SLOT, 1, NO_SLOT, 0), False),
        ((32, 64, 0, 64), False),
        ((0, 8193, 0, 64), False),
        ((8192, 1, 0, 64), False),
        ((NO_SLOT - 63, 64, 0, 64), False),
        ((0, 64, 32, 64), False),
        ((0, 64, 8128, 65), False),
        ((0, NO_SLOT, 0, 64), False),
        ((0, 64, 64, NO_SLOT), False),
    ],
)
def test_places_must_lie_in_the_arena(places: tuple[int, int, int, int], good: bool) -> None:
    request = RequestFrame(1, 1, 0, 0, 0, *places, 0, 0, "m", b"")
    if good:
        check_places(request, 8192)
    else:
        with pytest.raises(InvalidArgument):
            check_places(request, 8192)
