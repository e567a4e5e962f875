"""Which requests run together and when, and who waited too long."""

from __future__ import annotations

import pytest

from fabric.errors import QueueFull
from tests.unit.workers.batch_scene import WAITER, Scene
from workers.batchconfig import Batching, QueuePolicy
from workers.desks import ModelQueue
from workers.job import DEFAULT_LEVEL, Job, JobState


def test_what_waits_goes_together_up_to_the_largest_batch() -> None:
    scene = Scene(Batching(4))
    assert scene.offer(1).state is JobState.HANDED_OVER  # there is nothing to wait for
    for rows in (2, 1, 1, 1):
        scene.offer(rows)
    assert scene.take() == []  # the executor has one of the same model: what waits may still grow
    scene.done([1])
    assert scene.take() == [2, 3, 4]
    scene.done([2, 3, 4])
    assert scene.take() == [5]
    scene.done([5])
    assert (scene.admission.waiting, scene.admission.outstanding_us, scene.model.waiting) == (0, 0, 0)


def test_the_first_waits_for_others_as_long_as_it_may() -> None:
    scene = Scene(Batching(4, queue_delay_max_us=1000))
    scene.offer(1, now=1.0)
    assert scene.take(1.0009) == []
    assert scene.admission.next_look_s() == pytest.approx(1.001)
    scene.offer(1, now=1.0009)
    assert scene.take(1.001) == [1, 2]
    scene.done([1, 2])
    for _ in range(4):
        scene.offer(1, now=2.0)
    assert scene.take(2.0) == [3, 4, 5, 6]  # it is full


def test_preferred_sizes_go_at_once_and_others_wait() -> None:
    scene = Scene(Batching(8, preferred=(2, 4), queue_delay_max_us=1000))
    for _ in range(3):
        scene.offer(1, now=0.0)
    assert scene.take(0.0) == [1, 2]
    scene.done([1, 2])
    assert scene.take(0.0) == []
    assert scene.take(0.001) == [3]
    scene.done([3])
    for _ in range(7):
        scene.offer(1, now=1.0)
    assert scene.take(1.0) == [4, 5, 6, 7]


def test_only_requests_of_a_kind_run_together() -> None:
    scene = Scene(Batching(8))
    scene.open(yes=False)
    for width in (2, 3, 2, 3):
        scene.offer(1, width=width)
    scene.open(yes=True)
    assert scene.take() == [1, 3]
    scene.done([1, 3])
    assert scene.take() == [2, 4]


def test_one_that_is_larger_than_any_batch_runs_by_itself_and_gets_its_error_there() -> None:
    scene = Scene(Batching(4))
    job = scene.offer(5)
    assert job.ticket is not None
    assert job.ticket.alone
    scene.offer(1)
    assert scene.take() == [1]
    scene.done([1])
    assert scene.take() == [2]


def test_order_is_kept_by_having_one_batch_out_at_a_time() -> None:
    scene = Scene(Batching(2, ordered=True), executors=2)
    scene.open(yes=False)
    for width in (2, 3, 2):
        scene.offer(1, width=width)
    scene.open(yes=True)
    assert scene.take() == [1, 3]  # of one kind, and 3 does not overtake 2 in its own kind
    assert scene.take() == []
    scene.done([1, 3])
    assert scene.take() == [2]


def test_priorities_come_first_and_unknown_ones_are_the_default() -> None:
    scene = Scene(Batching(1, levels=3, default_level=2))
    scene.open(yes=False)
    order = [scene.offer(1, priority=priority).level for priority in (0, 3, 1, 9)]
    assert order == [2, 3, 1, 2]
    scene.open(yes=True)
    taken = []
    for _ in range(4):
        taken += scene.take()
        scene.done(taken[-1:])
    assert taken == [3, 1, 4, 2]


def test_a_queue_is_full_by_its_level() -> None:
    policies = ((1, QueuePolicy(size_max=1)),)
    scene = Scene(Batching(4, levels=2, default_level=2, policy=QueuePolicy(size_max=2), policies=policies))
    scene.desks[0].open = False
    scene.offer(priority=1)
    scene.offer(priority=2)
    scene.offer(priority=2)
    for priority in (1, 2, 0):
        with pytest.raises(QueueFull):
            scene.offer(priority=priority)
    assert scene.admission.waiting == 3
    scene.desks[0].open = True
    assert scene.take() == [1, 2, 3]


def test_whoever_waited_too_long_is_refused_by_the_timer_while_every_executor_is_busy() -> None:
    scene = Scene(Batching(1, policy=QueuePolicy(timeout_us=100_000)))
    scene.offer(now=0.0)
    scene.take(0.0)
    late, own = scene.offer(now=0.0), scene.offer(now=0.0, lasts_s=0.05)
    assert scene.admission.next_look_s() == pytest.approx(0.05)
    assert scene.admission.expire(0.05) == [own]
    assert scene.admission.next_look_s() == pytest.approx(0.1)
    assert scene.admission.expire(0.0999) == []
    assert scene.admission.expire(0.1) == [late]
    assert (scene.admission.waiting, scene.admission.next_look_s()) == (0, None)


def test_whoever_is_delayed_runs_after_all_others_and_is_not_refused() -> None:
    scene = Scene(Batching(1, policy=QueuePolicy(delays=True, timeout_us=100_000)))
    scene.offer(now=0.0)
    scene.take(0.0)
    scene.offer(now=0.0)
    scene.offer(now=0.05)
    assert scene.admission.expire(0.1) == []
    scene.done([1], 0.1)
    assert scene.take(0.1) == [3]
    scene.done([3], 0.1)
    assert scene.take(0.1) == [2]


def test_a_withdrawn_one_leaves_its_batch_and_its_room() -> None:
    scene = Scene(Batching(4, policy=QueuePolicy(size_max=2)))
    scene.desks[0].open = False
    gone, _ = scene.offer(), scene.offer()
    scene.admission.withdraw(gone)
    scene.offer()
    scene.desks[0].open = True
    assert scene.take() == [2, 3]
    assert gone.state is JobState.OVER


def test_a_batch_that_came_back_goes_again_in_its_order_and_one_that_died_goes_one_by_one() -> None:
    scene = Scene(Batching(4))
    scene.open(yes=False)
    jobs = [scene.offer() for _ in range(3)]
    scene.open(yes=True)
    assert scene.take() == [1, 2, 3]
    for job in jobs:
        scene.desks[0].take_back(job.request_no, 0.0)
        scene.admission.put_back(job)
    scene.offer()
    assert scene.take() == [1, 2, 3, 4]
    for number in (1, 2, 3, 4):
        job = scene.desks[0].take_back(number, 0.0)
        assert job is not None
        scene.admission.put_back(job, alone=True)
    assert [scene.take() for _ in range(4)] == [[1], [2], [3], [4]]
    scene.done([1, 2, 3, 4])
    assert (scene.admission.waiting, scene.admission.outstanding_us) == (0, 0)


def test_order_is_kept_after_an_executor_died_of_a_batch_too() -> None:
    scene = Scene(Batching(3, ordered=True, queue_delay_max_us=1000), executors=2)
    jobs = [scene.offer() for _ in range(3)]
    assert scene.take() == [1, 2, 3]
    for _ in range(2):
        scene.offer()
    for job in jobs:
        scene.desks[0].take_back(job.request_no, 0.0)
        scene.admission.put_back(job, alone=True)
    for batch in ([1], [2], [3]):
        assert scene.take() == batch
        assert scene.take() == [], "the other executor would overtake it"
        scene.done(batch)
    assert scene.take(0.0005) == [], "for these the delay is not over"
    assert scene.take(0.002) == [4, 5]


def test_other_models_wait_neither_for_a_delay_nor_for_ever() -> None:
    scene = Scene(Batching(4, queue_delay_max_us=1_000_000))
    other = ModelQueue("other", 100, None, idempotent=False)
    other.speed.warmed(10)
    scene.offer(now=0.0)
    job = Job(other, 1, 77, WAITER, 0.0, 100.0, DEFAULT_LEVEL, 0)
    assert scene.admission.offer(job, 0.0) is scene.desks[0]
    # Once it is due the batch goes before what came later, though the executor always has something else to do.
    scene.desks[0].give(77, job, 0.0)
    scene.desks[0].moved_s = 1.0
    later = Job(other, 1, 78, WAITER, 1.0, 100.0, DEFAULT_LEVEL, 0)
    later.order = 99
    scene.admission._enter(later)
    assert [scene.take(1.0), scene.take(1.0)] == [[1], [78]]


def test_a_change_of_the_configuration_loses_nobody() -> None:
    scene = Scene(Batching(4))
    scene.desks[0].open = False
    for _ in range(3):
        scene.offer()
    scene.admission.reline(scene.model, Batching(2))
    scene.offer()
    scene.admission.reline(scene.model, None)
    scene.desks[0].open = True
    taken = [scene.take() for _ in range(4)]
    assert sorted(number for batch in taken for number in batch) == [1, 2, 3, 4]
    assert scene.admission.waiting == 0
