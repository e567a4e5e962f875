"""A deadline travels as what remains of it, and nonsense is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.deadline import TIMEOUT_MAX_S, Deadline
from fabric.errors import InvalidArgument

times = st.floats(0, 1e6)


@given(st.floats(0, TIMEOUT_MAX_S), times)
def test_remaining(timeout_s: float, now: float) -> None:
    deadline = Deadline.after(timeout_s, now)
    assert deadline.remaining_s(now) == pytest.approx(timeout_s, abs=1e-6)
    assert deadline.remaining_s(deadline.at_s) == 0
    assert deadline.remaining_us(deadline.at_s + 5) == 0
    assert deadline.expired(deadline.at_s)
    assert deadline.expired(now) == (deadline.at_s <= now)


@given(st.integers(0, (1 << 64) - 1), times)
def test_what_a_peer_sends_is_bounded(remaining_us: int, now: float) -> None:
    remaining_s = Deadline.from_remaining_us(remaining_us, now).remaining_s(now)
    assert 0 <= remaining_s <= TIMEOUT_MAX_S + 1e-6


@given(st.floats(0, 1000), times)
def test_a_round_trip_loses_less_than_two_microseconds(timeout_s: float, now: float) -> None:
    sent = Deadline.after(timeout_s, now)
    received = Deadline.from_remaining_us(sent.remaining_us(now), now)
    assert -2e-6 < received.at_s - sent.at_s < 1e-9


@pytest.mark.parametrize("timeout_s", [-1e-9, -5, math.nan, math.inf, TIMEOUT_MAX_S * 1.01])
def test_nonsense_is_refused(timeout_s: float) -> None:
    with pytest.raises(InvalidArgument, match="give seconds"):
        Deadline.after(timeout_s, 0)


def test_earlier() -> None:
    first, second = Deadline(1.0), Deadline(2.0)
    assert first.earlier(second) is first
    assert second.earlier(first) is first
