"""The states of a worker: every edge of the table, ejection with its floor, and probation."""

from __future__ import annotations

import pytest

from discovery.instance import Readiness
from fabric.errors import IllegalTransition
from fabric.transport import WireName
from router.config import RouterConfig
from router.workers import EDGES, Event, State, Worker
from tests.unit.router.fleet import Fleet, NamedLink, instance

CONFIG = RouterConfig(eject_after=3, eject_first_s=1.0, eject_max_s=3.0)


def ready() -> Worker:
    worker = Worker(instance("a"), CONFIG)
    worker.linked(NamedLink("a"))
    return worker


def ejected(now: float = 0.0) -> Worker:
    worker = ready()
    for _ in range(3):
        worker.failed(last_usable=False, now=now)
    assert worker.state is State.EJECTED
    return worker


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(Event))
def test_an_edge_that_is_not_in_the_table_raises_with_the_story_and_changes_nothing(state: State, event: Event) -> None:
    worker = ready()
    worker.state = state
    if event in EDGES[state]:
        worker._go(event)
        assert worker.state is EDGES[state][event]
        return
    with pytest.raises(IllegalTransition, match="link up -> ready"):
        worker._go(event)
    assert worker.state is state


def test_failures_in_a_row_eject_and_one_answer_between_does_not() -> None:
    worker = ready()
    for _ in range(5):
        worker.failed(last_usable=False, now=0.0)
        worker.failed(last_usable=False, now=0.0)
        worker.answered()
    assert worker.state is State.READY
    assert ejected().why_not(0.5) == "ejected"


def test_an_ejected_worker_comes_back_one_request_at_a_time() -> None:
    worker = ejected()
    assert worker.why_not(1.0) == ""
    assert worker.state is State.PROBATION
    dispatch = worker.ahead.sent(1.0)
    assert "probation" in worker.why_not(1.0)
    worker.ahead.ended(dispatch)
    worker.answered()
    assert worker.state is State.READY


def test_each_ejection_in_a_row_is_twice_as_long_up_to_its_end() -> None:
    worker, now, lengths = ejected(), 0.0, []
    for _ in range(4):
        lengths.append(worker.ejected_until_s - now)
        now = worker.ejected_until_s
        assert worker.why_not(now) == ""
        worker.failed(last_usable=False, now=now)
    assert lengths == [1.0, 2.0, 3.0, 3.0]


@pytest.mark.parametrize("count", range(1, 6))
def test_the_last_usable_worker_is_never_ejected(count: int) -> None:
    fleet = Fleet(*"abcde"[:count])
    table = fleet.core.table
    for _ in range(10):
        for worker in table.workers:
            worker.failed(last_usable=table.last_usable(worker, "plan", fleet.now), now=fleet.now)
    assert sum(not worker.why_not(fleet.now) for worker in table.workers) == 1


def test_what_a_node_says_of_itself_is_asked_before_each_dispatch() -> None:
    worker = ready()
    for readiness in (Readiness.DRAINING, Readiness.STARTING):
        worker.listed(instance("a", readiness=readiness))
        assert worker.why_not(0.0) == readiness.value
    worker.listed(instance("a", readiness=Readiness.DEGRADED))
    assert worker.why_not(0.0) == ""
    worker.silent = True
    assert worker.why_not(0.0) == "silent"
    assert worker.can_carry, "it may only be slow: better than nobody"


def test_what_was_learned_of_a_wire_outlives_its_link() -> None:
    worker = ready()
    worker.line.learn(1000, 5.0, 0.0)
    worker.link_lost()
    worker.linked(NamedLink("a"))
    assert worker.line.samples == 1


def test_each_wire_has_a_line_of_its_own_and_the_one_in_use_is_priced() -> None:
    worker = ready()
    worker.carried_by(WireName.LOCAL).learn(1000, 0.02, 0.0)
    assert worker.line.predict_ms(1000, 0.0) == pytest.approx(0.02)
    worker.wire_changed()
    assert worker.line.samples == 0
    assert worker.carried_by(WireName.LOCAL).samples == 1
