"""The retry budget, and the back-off between attempts."""

from __future__ import annotations

from random import Random

import pytest

from router.backoff import FullJitter
from router.budget import RetryBudget


def test_a_thousand_failures_at_one_instant_get_two_hundred_and_three_retries() -> None:
    budget = RetryBudget(0.2, 3)
    assert sum(budget.take(1000) for _ in range(1000)) == 203
    assert budget.refused == 797


def test_a_quiet_router_may_retry() -> None:
    budget = RetryBudget(0.2, 3)
    assert [budget.take(1) for _ in range(4)] == [True, True, True, False]


def test_a_retry_that_ended_makes_room_for_the_next() -> None:
    budget = RetryBudget(0.0, 1)
    assert budget.take(10)
    assert not budget.take(10)
    budget.give_back()
    assert budget.take(10)
    assert budget.granted == 2


def test_giving_back_what_was_not_granted_is_a_bug() -> None:
    with pytest.raises(AssertionError):
        RetryBudget(0.2, 3).give_back()


def test_the_back_off_doubles_up_to_its_end_and_is_drawn_from_zero() -> None:
    jitter = FullJitter(0.002, 0.25, Random(1))
    for attempt in range(1, 12):
        ceiling = min(0.25, 0.002 * 2 ** (attempt - 1))
        drawn = [jitter.after(attempt) for _ in range(300)]
        assert 0.0 <= min(drawn) < ceiling * 0.1
        assert ceiling * 0.9 < max(drawn) <= ceiling


def test_the_same_seed_gives_the_same_waits() -> None:
    first, second = (FullJitter(0.002, 0.25, Random(7)) for _ in range(2))
    assert [first.after(n) for n in range(1, 9)] == [second.after(n) for n in range(1, 9)]
