"""Copies of late requests: when one may be sent, under which budget, and that nothing is left of the one that lost."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from fabric import errors
from fabric.frame import Load
from router.config import RouterConfig
from router.hedge import HEDGE_AFTER_RUNS, SAVED_RUNS_MAX, HedgeBudget, Hedger
from router.load import Page
from router.race import race
from tests.unit.router.fleet import Fleet, answer, body, name_of

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.transport import Answer, Call
    from router.dispatch import Attempt
    from router.steps import Read
    from tests.unit.router.fleet import Life


def fleet_of(*names: str, ratio: float = 1.0) -> tuple[Fleet, Hedger]:
    """Workers that know the model and take a millisecond for it."""
    fleet = Fleet(*names, config=RouterConfig(seed=1, hedge_ratio=ratio))
    kind = fleet.core.table.work.kind("plan", body().layout.body_bytes)
    for worker in fleet.core.table.workers:
        worker.speed.learn(kind, 1.0, fleet.now)
        kind.learn(1.0, 64, fleet.now)
    hedger = fleet.core.hedger
    assert hedger is not None
    return fleet, hedger


def begun(fleet: Fleet) -> tuple[Life, Attempt]:
    life = fleet.life()
    return life, fleet.send(life)


class Scripted:
    """Stands in for the link of an attempt: answers after a while, or never, or fails."""

    alive = True

    def __init__(self, after_s: float, outcome: Answer | errors.OverspillError) -> None:
        self.after_s, self.outcome, self.cancelled, self.running = after_s, outcome, False, False

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        self.running = True
        try:
            await asyncio.sleep(self.after_s)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.running = False
        if isinstance(self.outcome, errors.OverspillError):
            raise self.outcome
        return self.outcome


def run_clock(fleet: Fleet, hedger: Hedger) -> None:
    """From now on the hedger's clock goes on as the loop's does."""
    began_s = time.monotonic()
    hedger._clock = lambda: fleet.now + time.monotonic() - began_s


def run_race(fleet: Fleet, hedger: Hedger, attempt: Attempt, first: Scripted, second: Scripted) -> Answer:
    run_clock(fleet, hedger)
    attempt.link = first  # type: ignore[assignment]
    other = attempt.picked.second
    assert other is not None
    other.link = second  # type: ignore[assignment]

    async def whole() -> Answer:
        try:
            return await race(hedger, attempt)
        finally:  # the end of the loop would end them too
            assert not first.running
            assert not second.running

    return asyncio.run(whole())


def test_a_late_request_is_answered_by_its_copy_and_the_original_is_cancelled() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    first, second = Scripted(30.0, answer()), Scripted(0.0, answer(compute_us=7))
    found = run_race(fleet, hedger, attempt, first, second)
    assert (found.compute_us, first.cancelled, hedger.budget.sent) == (7, True, 1)
    assert attempt.tied is not None
    winner = attempt.tied.picked.worker.name
    assert fleet.finish(life, found).trace.worker == winner
    fleet.assert_idle()


def test_one_that_is_answered_in_time_is_never_copied() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    found = run_race(fleet, hedger, attempt, Scripted(0.0, answer(compute_us=5)), Scripted(0.0, answer()))
    assert (found.compute_us, hedger.budget.sent) == (5, 0)
    fleet.finish(life, found)
    fleet.assert_idle()


def test_pages_are_read_before_a_copy_is_sent() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    read: list[str] = []

    def begin_read(step: Read) -> bool:
        for worker in step.workers:
            read.append(worker.name)
            fleet.core.told(worker, Page(Load(9, 0, 5_000_000, 1), fleet.now), step.kind)
        return True

    hedger.begin_read = begin_read
    found = run_race(fleet, hedger, attempt, Scripted(0.5, answer(compute_us=5)), Scripted(0.0, answer()))
    assert set(read) == {"a", "b"} - {attempt.picked.worker.name}
    assert (found.compute_us, hedger.budget.sent) == (5, 0)
    fleet.finish(life, found)
    fleet.assert_idle()


def test_a_copy_that_fails_does_not_end_the_original() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    name = name_of(attempt)
    lost = Scripted(0.0, errors.NodeLost("the node was lost"))
    found = run_race(fleet, hedger, attempt, Scripted(0.1, answer(compute_us=5)), lost)
    assert (found.compute_us, hedger.budget.sent) == (5, 1)
    assert fleet.finish(life, found).trace.worker == name
    fleet.assert_idle()


def test_when_both_fail_the_original_tells_why() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    with pytest.raises(errors.ExecutorLost):
        run_race(fleet, hedger, attempt, Scripted(0.05, errors.ExecutorLost("x")), Scripted(0.0, errors.NodeLost("y")))
    life.close()
    fleet.assert_idle()


def test_giving_up_leaves_no_call_behind() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    first, second = Scripted(30.0, answer()), Scripted(30.0, answer())

    async def give_up() -> None:
        attempt.link = first  # type: ignore[assignment]
        other = attempt.picked.second
        assert other is not None
        other.link = second  # type: ignore[assignment]
        run_clock(fleet, hedger)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(race(hedger, attempt), 0.2)

    asyncio.run(give_up())
    assert first.cancelled
    assert second.cancelled
    life.close()
    fleet.assert_idle()


def test_a_copy_is_sent_after_several_times_what_was_predicted_and_only_where_it_is_answered_soon() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    predicted_ms = attempt.picked.terms[0] + HEDGE_AFTER_RUNS * attempt.picked.terms[4]
    assert hedger.after_s(attempt) == pytest.approx(predicted_ms / 1000.0, rel=0.01)
    other = attempt.picked.second
    assert other is not None
    other.ahead.reported(Load(9, 0, 50_000, 1), fleet.now)
    assert hedger.copy(attempt) is None, "in a busy fleet everything is late"
    assert hedger.budget.sent == 0
    life.close()


def test_what_must_not_run_twice_is_never_copied() -> None:
    fleet, hedger = fleet_of("a", "b")
    life = fleet.life("ledger")
    attempt = fleet.send(life)
    assert hedger.after_s(attempt) is None
    life.close()


def test_the_budget_is_a_share_and_never_ends_the_original() -> None:
    budget = HedgeBudget(0.05)
    granted = 0
    for _ in range(2000):
        budget.earn(20.0)
        granted += budget.take(20.0)
    assert granted <= 0.05 * 2000 + 1
    assert granted >= 0.05 * 2000 - 1
    assert budget.refused == 2000 - granted
    fleet, hedger = fleet_of("a", "b", ratio=0.0001)
    hedger.budget.earn(1.0)
    assert hedger.budget.take(1.0)
    life, attempt = begun(fleet)
    found = run_race(fleet, hedger, attempt, Scripted(0.1, answer(compute_us=5)), Scripted(0.0, answer()))
    assert found.compute_us == 5
    fleet.finish(life, found)


def test_the_budget_is_a_share_of_the_work_and_saves_up_for_a_burst_only() -> None:
    """Of requests of 1 and of 100 ms, copies of the short ones alone are granted as often as they are late."""
    budget, work_ms, granted_ms, refused = HedgeBudget(0.05), 0.0, 0.0, 0
    for number in range(4000):
        long = number % 2
        run_ms = 100.0 if long else 1.0
        work_ms += run_ms
        budget.earn(run_ms)
        if not long:
            granted_ms += run_ms * budget.take(run_ms)
    assert granted_ms == 2000.0, "each short one, which is a fiftieth of the work"
    for _ in range(100):
        refused += not budget.take(100.0)
    assert refused >= 100 - SAVED_RUNS_MAX - 1, "what a quiet time saved is ten runs"


def test_a_copy_goes_where_the_page_shows_room_and_nobody_is_read_for_a_spent_budget() -> None:
    fleet, hedger = fleet_of("a", "b", "c")
    life, attempt = begun(fleet)
    names = {"a", "b", "c"} - {name_of(attempt)}
    for worker in fleet.core.table.workers:  # what was known last is that nobody has anything to do
        worker.ahead.reported(Load(1, 1, 0, 1), fleet.now)
    assert hedger.after_s(attempt) is not None
    fleet.now += attempt.picked.terms[0] / 1000.0 + 0.1
    read = hedger.look(attempt)
    assert read is not None
    assert {worker.name for worker in read.workers} == names
    busy, idle = read.workers
    fleet.core.told(busy, Page(Load(5, 0, 500_000, 1), fleet.now), read.kind)
    fleet.core.told(idle, Page(Load(5, 0, 0, 1), fleet.now), read.kind)
    tied = hedger.copy(attempt, read)
    assert tied is not None
    assert tied.picked.worker is idle
    hedger.budget.take(1000.0)
    assert hedger.look(attempt) is None
    life.close()
    fleet.assert_idle()


def test_a_fleet_in_which_the_best_worker_has_a_queue_has_nobody_to_spare() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    assert hedger.after_s(attempt) is not None
    fleet.now += 1.0
    assert hedger.look(attempt) is not None
    crowd = [begun(fleet) for _ in range(20)]  # each of them waits for those before it
    for _, each in crowd:
        hedger.after_s(each)
    assert hedger.busy
    assert hedger.look(attempt) is None
    assert hedger.copy(attempt) is None
    for each, _ in crowd:
        each.close()
    for _ in range(500):
        quiet, each = begun(fleet)
        hedger.after_s(each)
        quiet.close()
    assert not hedger.busy, "it is over"
    life.close()
    fleet.assert_idle()


def test_a_copy_that_would_take_longer_than_the_request_is_late_is_not_sent_yet() -> None:
    fleet, hedger = fleet_of("a", "b")
    life, attempt = begun(fleet)
    (other,) = [worker for worker in fleet.core.table.workers if worker.name != name_of(attempt)]
    assert hedger.after_s(attempt) is not None
    fleet.now += attempt.picked.terms[0] / 1000.0 + 0.05
    fleet.core.told(other, Page(Load(5, 0, 60_000, 1), fleet.now), attempt.kind)
    assert hedger.copy(attempt, hedger.look(attempt)) is None, "late by 50 ms, and it would wait there for 60"
    fleet.now += 0.08
    fleet.core.told(other, Page(Load(6, 0, 60_000, 1), fleet.now), attempt.kind)
    assert hedger.copy(attempt, hedger.look(attempt)) is not None, "late by 130 ms now"
    life.close()
    fleet.assert_idle()


@pytest.mark.parametrize("ratio", [-0.1, 1.5, float("nan")])
def test_a_ratio_that_is_no_share_is_refused(ratio: float) -> None:
    with pytest.raises(errors.ConfigError):
        RouterConfig(hedge_ratio=ratio)
