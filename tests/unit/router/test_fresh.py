"""Which pages are read before a pick, what they change, and that a tied request is booked at both and left by both."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING

import pytest

from fabric import errors
from fabric.frame import Load
from fabric.transport import WireName
from router.config import RouterConfig
from router.dispatch import Attempt
from router.fresh import RANKED_MAX, far, near, pays
from router.freshen import read_for_copy, tie_late
from router.load import Page
from router.steps import Read
from tests.unit.router.fleet import Fleet, answer, name_of

if TYPE_CHECKING:
    from tests.unit.router.fleet import Life


def names(*count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(*count))


def reading(*who: str, tied: bool = False, local: tuple[str, ...] = ()) -> Fleet:
    fleet = Fleet(*who, config=RouterConfig(seed=1, tied=tied), local=local)
    fleet.core.pages = lambda _: None
    return fleet


def load(fleet: Fleet, name: str, ms: float) -> None:
    worker = fleet.worker(name)
    ahead = worker.ahead
    ahead.reported(Load(int(fleet.now * 1e6) + hash(name) % 1000, 0, int(ms * 1000), 1), fleet.now)


def test_most_reads_go_where_little_was_to_do_and_the_others_anywhere() -> None:
    fleet, rng = Fleet(*names(20)), Random(1)
    for number in range(20):
        load(fleet, f"n{number}", 10.0 * number)
    offer, kind = fleet.core.offer("plan"), fleet.core.table.work.kind("plan", 32)
    counts: Counter[str] = Counter()
    for _ in range(2000):
        found = [worker.name for worker in far(offer, (), kind, 1.0, 5, rng, fleet.now)]
        assert len(set(found)) == 5
        assert found[:3] == ["n0", "n1", "n2"]
        counts.update(found[3:])
    assert set(counts) == set(names(3, 20))
    assert max(counts.values()) < 2 * min(counts.values()), "the other two are anybody"


def test_a_large_fleet_costs_no_more_than_a_small_one() -> None:
    fleet, asked = Fleet(*names(256)), 0
    offer, kind = fleet.core.offer("plan"), fleet.core.table.work.kind("plan", 32)
    for worker in fleet.core.table.workers:
        full_ms = worker.speed.full_ms
        assert full_ms(kind) > 0.0
    seen = {worker.name for _ in range(200) for worker in far(offer, (), kind, 1.0, 5, Random(_), fleet.now)}
    assert len(seen) > RANKED_MAX, "another part of it each time"
    assert asked == 0


def test_who_failed_the_request_is_not_read() -> None:
    fleet = Fleet(*names(4))
    offer, kind = fleet.core.offer("plan"), fleet.core.table.work.kind("plan", 32)
    assert {worker.name for worker in far(offer, ("n1",), kind, 1.0, 5, Random(1), fleet.now)} == {"n0", "n2", "n3"}
    local = Fleet("a", "b", local=("a", "b"))
    assert [worker.name for worker in near(local.core.offer("plan"), ("a",), local.now)] == ["b"]


def test_remote_pages_are_not_read_while_a_local_worker_is_idle() -> None:
    fleet = Fleet("home", "away", local=("home",))
    offer, kind = fleet.core.offer("plan"), fleet.core.table.work.kind("plan", 32)
    for worker in fleet.core.table.workers:
        worker.speed.learn(kind, 20.0, fleet.now)
    remote = far(offer, (), kind, 1.0, 5, Random(1), fleet.now)
    assert not pays(offer.local, remote, kind, 1.0, 64, fleet.now)
    load(fleet, "home", 50.0)
    assert pays(offer.local, remote, kind, 1.0, 64, fleet.now)


def test_what_was_read_decides() -> None:
    fleet = reading(*names(6))
    life = fleet.life()
    step = life.send(None)
    assert isinstance(step, Read)
    assert len(step.workers) == 5
    free = step.workers[3]
    for worker in step.workers:
        ms = 0 if worker is free else 80_000
        fleet.core.told(worker, Page(Load(1, 0, ms, 1), fleet.now, 0.0), step.kind)
    sent = life.send(None)
    assert isinstance(sent, Attempt)
    assert sent.picked.worker is free
    fleet.finish(life, answer())
    fleet.assert_idle()


def test_a_page_tells_the_pace_too() -> None:
    fleet = reading("a", "b")
    life = fleet.life()
    step = life.send(None)
    assert isinstance(step, Read)
    for worker in step.workers:
        pace = 5.0 if worker.name == "a" else 60.0
        fleet.core.told(worker, Page(Load(1, 0, 10_000, 1), fleet.now, pace), step.kind)
    sent = life.send(None)
    assert isinstance(sent, Attempt)
    assert sent.picked.worker.name == "a"
    assert sent.picked.terms[4] == pytest.approx(5.0)
    fleet.finish(life, answer())


def tied_attempt(fleet: Fleet, ms: tuple[float, float] = (30.0, 40.0)) -> tuple[object, Attempt]:
    life = fleet.life()
    step = life.send(None)
    assert isinstance(step, Read)
    for worker, work in zip(step.workers, ms, strict=True):
        fleet.core.told(worker, Page(Load(1, 0, int(work * 1000), 1), fleet.now, 10.0), step.kind)
    sent = life.send(None)
    assert isinstance(sent, Attempt)
    return life, sent


def test_a_request_that_would_wait_is_tied_and_counts_at_both() -> None:
    fleet = reading("a", "b", tied=True)
    life, sent = tied_attempt(fleet)
    assert sent.tied is not None
    assert sent.tied.picked.worker is not sent.picked.worker
    assert [worker.ahead.out for worker in fleet.core.table.workers] == [1, 1]
    sent.tied.won = True
    winner = sent.tied.picked.worker.name
    reply = fleet.finish(life, answer())  # type: ignore[arg-type]
    assert reply.trace.worker == winner == sent.picked.worker.name
    fleet.assert_idle()


def test_a_tie_that_the_first_wins_or_that_fails_leaves_nothing_behind() -> None:
    fleet = reading("a", "b", tied=True)
    life, sent = tied_attempt(fleet)
    first = name_of(sent)
    assert fleet.finish(life, answer()).trace.worker == first  # type: ignore[arg-type]
    fleet.assert_idle()
    fleet = reading("a", "b", tied=True)
    life, sent = tied_attempt(fleet)
    with pytest.raises(errors.InvalidArgument):
        life.send(errors.InvalidArgument("wrong"))  # type: ignore[attr-defined]
    fleet.assert_idle()
    fleet = reading("a", "b", tied=True)
    life, sent = tied_attempt(fleet)
    life.close()  # type: ignore[attr-defined]
    fleet.assert_idle()


def test_what_begins_at_once_or_costs_far_more_elsewhere_is_not_tied() -> None:
    assert tied_attempt(reading("a", "b", tied=True), (0.0, 0.0))[1].tied is None
    assert tied_attempt(reading("a", "b", tied=True), (30.0, 300.0))[1].tied is None
    assert tied_attempt(reading("a", "b", tied=False))[1].tied is None


def test_without_pages_nothing_is_read() -> None:
    fleet = Fleet("a", "b")
    step = fleet.life().send(None)
    assert isinstance(step, Attempt)
    assert WireName.RPC is step.link.wire


def test_a_record_names_the_second_of_a_tie() -> None:
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, tied=True, explain_kept=9))
    fleet.core.pages = lambda _: None
    life, sent = tied_attempt(fleet)
    assert sent.tied is not None
    (decision,) = fleet.core.explain(str(sent.call.id))
    assert decision.tied == sent.tied.picked.worker.name
    assert any("tied with" in line for line in decision.sentences())
    fleet.finish(life, answer())  # type: ignore[arg-type]


def far_away(wait_ms: float, away_ms: float) -> tuple[Fleet, Life, Attempt]:
    """A request whose local worker is busy for `wait_ms`, and a remote one, 6 ms there and back, for `away_ms`; the
    attempt is out, and the read beside it is done."""
    fleet = reading("home", "away", tied=True, local=("home",))
    for worker in fleet.core.table.workers:
        for _ in range(20):
            worker.line.learn(0, 0.02 if worker.is_local else 6.0, fleet.now)
    life = fleet.life()
    step = life.send(None)
    assert isinstance(step, Read)
    assert [worker.name for worker in step.workers] == ["home"], "remote pages are not waited for"
    fleet.core.told(step.workers[0], Page(Load(1, 0, int(wait_ms * 1000), 1), fleet.now, 20.0), step.kind)
    attempt = life.send(None)
    assert isinstance(attempt, Attempt)
    assert attempt.picked.worker.name == "home"
    assert attempt.beside is not None
    fleet.now += 0.006
    for worker in attempt.beside.workers:
        fleet.core.told(worker, Page(Load(1, 0, int(away_ms * 1000), 1), fleet.now - 0.003, 20.0), step.kind)
    return fleet, life, attempt


def test_a_request_does_not_wait_for_pages_that_are_far_and_is_tied_when_they_are_there() -> None:
    fleet, life, attempt = far_away(60.0, 0.0)
    tied = tie_late(fleet.core, attempt)
    assert tied is not None
    assert tied.picked.worker.name == "away"
    assert [worker.ahead.out for worker in fleet.core.table.workers] == [1, 1]
    tied.won = True
    fleet.finish(life, answer())
    fleet.assert_idle()


def test_a_request_that_would_not_end_sooner_far_away_stays_where_it_is() -> None:
    fleet, life, attempt = far_away(60.0, 60.0)
    assert tie_late(fleet.core, attempt) is None
    fleet.finish(life, answer())
    fleet.assert_idle()


def test_pages_for_a_copy_are_read_at_once_where_that_can_be_and_beside_elsewhere() -> None:
    fleet, beside = Fleet("home", "away", local=("home",)), []
    core = fleet.core
    core.pages, core.readable = (lambda _: Page(Load(1, 0, 0, 1), fleet.now)), (lambda worker: worker.is_local)
    core.beside = beside.append
    step = Read(core.table.workers, core.table.work.kind("plan", 32))
    assert read_for_copy(core, step), "one is on its way"
    assert core.statistics().pages_read == 1
    assert [worker.name for worker in beside[0].workers] == ["away"]
    assert not read_for_copy(core, Read((fleet.worker("home"),), step.kind))


def test_pages_that_cannot_be_read_are_counted_and_reports_decide() -> None:
    fleet = reading("a", "b")
    fleet.worker("a").ahead.reported(Load(1, 0, 80_000, 1), fleet.now)
    life = fleet.life()
    step = life.send(None)
    assert isinstance(step, Read)
    fleet.core.read(step)
    attempt = life.send(None)
    assert isinstance(attempt, Attempt)
    assert attempt.picked.worker.name == "b"
    assert fleet.core.statistics().pages_unread == 2
    fleet.core.pages = lambda _: Page(Load(9, 0, 0, 1), fleet.now)
    fleet.core.read(step)
    assert fleet.core.statistics().pages_read == 2
    fleet.finish(life, answer())


def test_a_request_of_unknown_cost_is_tied_with_several_and_the_losers_have_it_no_more() -> None:
    fleet = reading("a", "b", "c", "d", "e", tied=True)
    life = fleet.life()
    step = life.send(None)
    assert isinstance(step, Read)
    for number, worker in enumerate(step.workers):
        fleet.core.told(worker, Page(Load(1, 0, 30_000 + number * 1000, 1), fleet.now, 20.0), step.kind)
    attempt = life.send(None)
    assert isinstance(attempt, Attempt)
    assert attempt.tied is not None
    tied = attempt.tied.all()
    assert len(tied) == 3
    assert sum(worker.ahead.out for worker in fleet.core.table.workers) == 4
    tied[1].won = True
    winner = tied[1].picked.worker
    reply = fleet.finish(life, answer())
    assert reply.trace.worker == winner.name
    fleet.assert_idle()


def test_nobody_is_read_where_nobody_is_to_be_compared_or_runs_are_short() -> None:
    alone = reading("a")
    assert isinstance(alone.life().send(None), Attempt)
    fleet = reading("a", "b")
    assert isinstance(fleet.life().send(None), Read)
    kind = fleet.core.table.work.kind("plan", 32)
    for _ in range(20):
        kind.learn(0.1, 64, fleet.now)
    step = fleet.life().send(None)
    assert isinstance(step, Attempt)
    assert step.picked.candidates == 2
