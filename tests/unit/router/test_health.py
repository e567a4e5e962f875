"""Who gets work when workers fail, come, return and are told of again: sinks, the last one standing, slow start."""

from __future__ import annotations

import heapq
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from discovery.instance import Insert
from fabric import errors
from fabric.errors import Fate
from fabric.frame import Load
from router.config import RouterConfig
from router.dispatch import Attempt
from router.steps import Wait
from router.workers import State
from tests.unit.router.fleet import Fleet, answer, instance, name_of
from tests.unit.router.town import Node, Town, shares

if TYPE_CHECKING:
    from fabric.transport import Answer
    from tests.unit.router.fleet import Life

MS = 0.001
NAMES = ("a", "b", "c", "d")


def serve(fleet: Fleet, count: int, bad: tuple[str, ...] = (), pause_s: float = 5 * MS) -> Counter[str]:
    """One request after the other; the bad ones fail within a millisecond. Counts the attempts of each worker."""
    tried: Counter[str] = Counter()
    for _ in range(count):
        life = fleet.life(timeout_s=60.0)
        step = fleet.send(life)
        while name_of(step) in bad:
            tried[name_of(step)] += 1
            fleet.now += MS
            step = fleet.send(life, errors.ExecutorLost("its executor ended", Fate.NEVER_RAN))
        tried[name_of(step)] += 1
        fleet.now += 5 * MS
        fleet.finish(life, answer(compute_us=4000))
        fleet.now += pause_s
    return tried


def test_a_worker_that_fails_everything_at_once_is_no_sink_and_comes_back_when_it_is_mended() -> None:
    fleet = Fleet(*NAMES)
    serve(fleet, 50, bad=("a",))
    tried = serve(fleet, 1000, bad=("a",))
    assert tried["a"] / tried.total() < 0.02
    serve(fleet, 6000, bad=("a",))  # for a minute: its ejections are as long as they get
    mended_s = fleet.now
    while fleet.worker("a").state is not State.READY:
        serve(fleet, 10)
        assert fleet.now - mended_s < 10.0
    tried = serve(fleet, 400)
    assert tried["a"] >= 0.8 * 100


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_the_last_usable_worker_is_never_ejected(count: int) -> None:
    fleet = Fleet(*NAMES[:1], *(f"n{number}" for number in range(count - 1)))
    for _ in range(40):
        life = fleet.life(timeout_s=60.0)
        fleet.send(life)
        with suppress(errors.ExecutorLost):  # its last attempt
            while True:
                fleet.now += MS
                fleet.send(life, errors.ExecutorLost("its executor ended", Fate.NEVER_RAN))
        usable = [worker for worker in fleet.core.table.workers if not worker.why_not(fleet.now)]
        assert usable, "somebody is left to ask"
    fleet.assert_idle()


@pytest.mark.parametrize(("panic", "sent"), [("spray", True), ("fail", False)])
def test_panic_is_what_the_operator_said_and_is_counted(panic: str, sent: bool) -> None:
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, panic=panic))  # type: ignore[arg-type]
    for worker in fleet.core.table.workers:
        worker.unlisted()
    fleet.core.table.offers.clear()
    step = fleet.life().send(None)
    assert isinstance(step, Attempt if sent else Wait)
    assert fleet.core.statistics().panics == 1


def test_a_panic_that_is_none_is_refused() -> None:
    with pytest.raises(errors.ConfigError, match="give one of spray, fail"):
        RouterConfig(panic="pray")  # type: ignore[arg-type]


def test_two_new_ones_among_many_are_tried_soon_and_get_their_share_whoever_else_comes() -> None:
    town = Town(**{f"n{number}": Node(5 * MS, MS, 1) for number in range(130)})
    town.run(1, 1500, pause_s=4 * MS)

    def add(*names: str) -> None:
        for name in names:
            town.nodes[name] = Node(5 * MS, MS, 1)
            town.add(instance(name))

    add("new1", "new2")
    soon = shares(town.run(1, 500, pause_s=4 * MS))  # five seconds, at a hundred requests each second
    assert soon.get("new1", 0.0) > 0.0
    assert soon.get("new2", 0.0) > 0.0
    add("later1", "later2")
    town.run(1, 500, pause_s=4 * MS)
    found = shares(town.run(1, 8000, pause_s=4 * MS))
    for name in ("new1", "new2", "later1", "later2"):
        assert found[name] > 0.7 / 134, "its fair share, less what chance takes of sixty requests"


def test_a_thousand_republished_lists_and_a_newcomer_change_nothing_that_was_learned() -> None:
    fleet = Fleet(*NAMES)
    serve(fleet, 100)
    fleet.worker("a").failed(last_usable=False, now=fleet.now)
    before = [(repr(worker), worker.state, worker.failures, worker.speed) for worker in fleet.core.table.workers]
    for _ in range(1000):
        assert fleet.core.table.changed(tuple(Insert(instance(name)) for name in NAMES)) == ()
    fleet.add(instance("newcomer"))
    after = [(repr(worker), worker.state, worker.failures, worker.speed) for worker in fleet.core.table.workers]
    assert after[:-1] == before


def busy_share(callers: int, room: int, runs: int) -> float:
    """Callers in a closed loop on one worker that has room for so many requests, with the one that runs, and refuses
    more; each takes a break after an answer, so that another one must be there. The part of the worker's time in which
    it ran something."""
    service_s, break_s, wire_s = 100 * MS, 20 * MS, 0.2 * MS
    fleet, order, served, free_s = Fleet("only"), 0, 0, 0.0
    due: list[tuple[float, int, Life, Answer | errors.OverspillError | None]] = []
    ends_s: list[float] = []

    def put(after_s: float, life: Life, outcome: Answer | errors.OverspillError | None) -> None:
        nonlocal order
        order += 1
        heapq.heappush(due, (fleet.now + after_s, order, life, outcome))

    began_s = fleet.now
    for _ in range(callers):
        put(0.0, fleet.life(timeout_s=60.0), None)
    while served < runs:
        fleet.now, _, life, outcome = heapq.heappop(due)
        try:
            step = life.send(outcome)
        except StopIteration:
            served += 1
            put(break_s, fleet.life(timeout_s=60.0), None)
            continue
        except errors.QueueFull:  # the caller is told, and asks again
            put(MS, fleet.life(timeout_s=60.0), None)
            continue
        if isinstance(step, Wait):
            put(step.delay_s, life, None)
        elif sum(end_s > fleet.now for end_s in ends_s[-room:]) >= room:
            put(wire_s, life, errors.QueueFull("its queue is full; send it again later"))
        else:
            free_s = max(free_s, fleet.now + wire_s / 2) + service_s
            ends_s.append(free_s)
            load = Load(len(ends_s), len(ends_s), 0, 1)
            put(free_s + wire_s / 2 - fleet.now, life, answer(load, compute_us=int(service_s * 1e6)))
    for _, _, life, _ in due:
        life.close()
    fleet.assert_idle()
    return runs * service_s / (fleet.now - began_s)


@pytest.mark.parametrize(
    ("room", "least"), [(1, 0.95), (5, 0.99)], ids=["which refuses all but one", "which has room for all"]
)
def test_five_callers_keep_one_worker_as_busy_as_it_can_be(room: int, least: float) -> None:
    """Requests that wait at the router, or that ask again ever later, leave a worker idle that has five callers."""
    assert busy_share(5, room, 200) >= least


def test_a_saturated_worker_gets_nothing_while_another_is_idle() -> None:
    town = Town(near=Node(50 * MS, 0.05 * MS, 1), far=Node(5 * MS, MS, 1))
    town.run(4, 100)
    found = shares(town.run(4, 500))
    assert found["far"] > 0.75
