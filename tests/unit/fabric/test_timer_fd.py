"""A timer that is a descriptor: due when it was set to be, and not before, and not once it is set anew."""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

import pytest

from fabric.timer_fd import TimerFd

if TYPE_CHECKING:
    from collections.abc import Iterator

LATE_MS = 20_000


@pytest.fixture
def timer() -> Iterator[TimerFd]:
    made = TimerFd()
    yield made
    made.close()


def due(timer: TimerFd, wait_ms: int) -> bool:
    poll = select.poll()
    poll.register(timer.fd, select.POLLIN)
    return bool(poll.poll(wait_ms))


@pytest.mark.parametrize("how", ["at", "in"])
def test_it_is_due_at_its_time_and_stays_so(timer: TimerFd, how: str) -> None:
    assert not due(timer, 0)
    began_s = time.monotonic()
    if how == "at":
        timer.set_at(began_s + 0.01)
    else:
        timer.set_in(0.01)
    assert due(timer, LATE_MS)
    assert time.monotonic() - began_s >= 0.01
    assert due(timer, 0)


def test_a_time_that_has_passed_is_due_at_once(timer: TimerFd) -> None:
    timer.set_at(time.monotonic() - 1.0)
    assert due(timer, LATE_MS)
    timer.set_at(0.0)
    assert due(timer, LATE_MS)


def test_what_is_set_anew_or_cleared_is_not_due(timer: TimerFd) -> None:
    timer.set_in(1e-9)
    assert due(timer, LATE_MS)
    timer.set_in(3600.0)
    assert not due(timer, 0)
    timer.set_in(1e-9)
    assert due(timer, LATE_MS)
    timer.clear()
    assert not due(timer, 0)
