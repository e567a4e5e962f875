"""The work before a worker: a report never erases a dispatch that it has not seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.frame import Load
from router.load import WorkAhead


def test_a_report_from_before_a_burst_leaves_the_burst_counted() -> None:
    ahead = WorkAhead()
    first = ahead.sent(10.0)
    burst = [ahead.sent(10.0) for _ in range(5)]
    ahead.reported(Load(1, 1, 10_000, 1), 0.0, first)  # made when it had seen the first only
    ahead.ended(first)
    assert ahead.unseen == 5
    assert ahead.wait_ms(0.0)[1] == pytest.approx(50.0)
    ahead.reported(Load(2, 6, 50_000, 1), 0.0)
    assert ahead.unseen == 0
    assert ahead.wait_ms(0.0)[0] == pytest.approx(50.0)
    for dispatch in burst:
        ahead.ended(dispatch)
    assert ahead.wait_ms(0.0)[0] == 0.0


def test_the_report_of_an_answer_leaves_its_request_out_so_that_nothing_is_taken_off_twice() -> None:
    ahead = WorkAhead()
    mine = ahead.sent(30.0)
    ahead.reported(Load(1, 1, 100_000, 1), 0.0, mine)  # 100 ms of others, as the node counts it without this request
    ahead.ended(mine)
    assert ahead.wait_ms(0.0) == (pytest.approx(100.0), 0.0)


def test_a_request_that_a_later_report_still_holds_is_taken_off_when_it_ends() -> None:
    ahead = WorkAhead()
    slow, quick = ahead.sent(30.0), ahead.sent(10.0)
    ahead.reported(Load(2, 2, 30_000, 2), 0.0, quick)  # handed over while the slow one ran beside it
    ahead.ended(quick)
    assert not ahead.reported(Load(1, 1, 0, 2), 0.0, slow)
    ahead.ended(slow)
    assert ahead.wait_ms(0.0) == (0.0, 0.0)


def test_a_page_that_still_counts_what_has_ended_here_is_set_right() -> None:
    """The executor answers before the node hears of it: the next pick of a caller that asks one after the other must
    not take its own last request for a queue."""
    ahead = WorkAhead()
    mine = ahead.sent(30.0)
    ahead.reported(Load(1, 1, 0, 1), 0.0, mine)
    ahead.ended(mine)
    ahead.reported(Load(2, 1, 29_000, 1), 0.0, None, 1)
    assert ahead.wait_ms(0.0) == (0.0, 0.0)
    ahead.reported(Load(3, 1, 100_000, 1), 0.0, None, 0)  # the page knows of the end: all that it tells is others'
    assert ahead.wait_ms(0.0)[0] == pytest.approx(100.0)


def test_a_page_that_counts_what_is_out_is_taken_as_it_is() -> None:
    ahead = WorkAhead()
    for _ in range(2):
        ahead.ended(ahead.sent(30.0))
    ahead.sent(30.0)
    ahead.sent(30.0)
    ahead.reported(Load(1, 3, 30_000, 1), 0.0, None, 1)  # of four it has seen three, two of which are over
    assert ahead.wait_ms(0.0) == (pytest.approx(30.0), pytest.approx(30.0))


def test_an_old_report_that_comes_late_changes_nothing() -> None:
    ahead = WorkAhead()
    ahead.sent(1.0)
    assert ahead.reported(Load(5, 1, 4_000, 2), 0.0)
    assert not ahead.reported(Load(4, 0, 90_000, 2), 0.0)
    assert ahead.wait_ms(0.0)[0] == pytest.approx(2.0)
    assert ahead.unseen == 0


def test_reported_work_is_worked_off_with_time() -> None:
    ahead = WorkAhead()
    ahead.reported(Load(1, 0, 40_000, 2), 10.0)
    assert ahead.wait_ms(10.0)[0] == pytest.approx(20.0)
    assert ahead.wait_ms(10.005)[0] == pytest.approx(15.0)
    assert ahead.wait_ms(11.0)[0] == 0.0


def test_dispatches_the_worker_never_counted_are_not_counted_for_ever() -> None:
    ahead = WorkAhead()
    for _ in range(10):
        ahead.ended(ahead.sent(1.0))  # refused, or lost with the link: the worker counted none of them
    next_one = ahead.sent(1.0)
    ahead.reported(Load(1, 1, 1_000, 1), 0.0, next_one)
    assert ahead.unseen == 0
    ahead.ended(next_one)
    ahead.sent(1.0)
    assert ahead.unseen == 1


class World:
    """A worker that counts what reaches it, and our log of it."""

    def __init__(self) -> None:
        self.ahead = WorkAhead()
        self.out: list[object] = []
        self.reached: list[object] = []  # in the worker's order
        self.sequence = 0
        self.reports: list[tuple[Load, frozenset[object]]] = []


@given(
    st.lists(st.tuples(st.sampled_from(["send", "report", "hear", "end", "refuse"]), st.integers(0, 99)), max_size=60)
)
def test_any_interleaving_counts_each_unseen_dispatch_and_none_when_idle(steps: list[tuple[str, int]]) -> None:
    world, heard = World(), frozenset[object]()
    ahead = world.ahead
    for what, choice in steps:
        if what == "send":
            dispatch = ahead.sent(1.0)
            world.out.append(dispatch)
            world.reached.append(dispatch)
        elif what == "report":  # made now, heard whenever
            world.sequence += 1
            seen = frozenset(world.reached)
            world.reports.append((Load(world.sequence, len(world.reached), 0, 1), seen))
        elif what == "hear" and world.reports:
            load, seen = world.reports.pop(choice % len(world.reports))
            if ahead.reported(load, 0.0):
                heard = seen
        elif what == "end" and world.out:
            ahead.ended(world.out.pop(choice % len(world.out)))  # type: ignore[arg-type]
        elif what == "refuse":
            dispatch = ahead.sent(1.0)
            ahead.ended(dispatch)
        unseen = [dispatch for dispatch in world.out if dispatch not in heard]
        assert ahead.unseen >= len(unseen), "a report erased a dispatch that it had not seen"
        assert ahead.wait_ms(0.0)[1] >= 0.0
        if not any(step == "refuse" for step, _ in steps):
            assert ahead.unseen == len(unseen)
            assert ahead.wait_ms(0.0)[1] == pytest.approx(len(unseen))
        if not world.out:
            assert ahead.unseen == 0
            assert ahead.wait_ms(0.0)[1] == 0.0
