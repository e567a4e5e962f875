"""The loop's look for the next event before it sleeps: only where events come quickly, and never past a timer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from fabric.local.reactor import QUICK_MIN, Reactor

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_S = 0.2
WAIT_S = 0.1


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    made = Reactor(LOOK_S)
    yield made
    made.close()


def quick(reactor: Reactor, count: int = QUICK_MIN) -> None:
    """So many events that come as soon as they are waited for: ones that are there already tell nothing."""
    for _ in range(count):
        reactor.call_later(0.01, lambda: None)
        reactor.turn()


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When it gave way to others while it looked."""
    seen: list[float] = []
    give_way = os.sched_yield

    def looked() -> None:
        seen.append(time.monotonic())
        give_way()

    monkeypatch.setattr(os, "sched_yield", looked)
    return seen


def test_after_quick_events_it_looks_for_the_next_one(reactor: Reactor, looks: list[float]) -> None:
    quick(reactor)
    assert not looks
    reactor.turn(WAIT_S)
    assert looks


def test_one_quick_event_is_not_enough(reactor: Reactor, looks: list[float]) -> None:
    quick(reactor, QUICK_MIN - 1)
    reactor.turn(WAIT_S)
    assert not looks


def test_a_long_gap_puts_it_to_sleep_again(reactor: Reactor, looks: list[float]) -> None:
    quick(reactor)
    reactor.turn(LOOK_S * 1.5)
    assert looks[-1] - looks[0] <= LOOK_S
    looks.clear()
    reactor.turn(WAIT_S)
    assert not looks


def test_a_loop_without_a_look_always_sleeps(looks: list[float]) -> None:
    reactor = Reactor()
    quick(reactor)
    reactor.turn(WAIT_S)
    assert not looks
    reactor.close()


def test_what_comes_while_it_looks_is_taken_and_timers_stay_true(reactor: Reactor) -> None:
    reads, writes = os.pipe()
    seen: list[str] = []

    def read(_events: int) -> None:
        seen.append(os.read(reads, 9).decode())

    reactor.add(reads, read)
    quick(reactor)
    os.write(writes, b"there")
    reactor.turn(WAIT_S)
    assert seen == ["there"]
    due_s = time.monotonic() + 0.01
    fired: list[float] = []
    reactor.call_later(0.01, lambda: fired.append(time.monotonic()))
    while not fired:
        reactor.turn(WAIT_S)
    assert due_s <= fired[0] < due_s + LOOK_S
    for fd in (reads, writes):
        os.close(fd)
