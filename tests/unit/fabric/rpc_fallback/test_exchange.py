"""An id is asked of the node once, whoever asks again, and its answer goes to the newest asker."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.deadline import Deadline
from fabric.errors import DeadlineExceeded
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import RequestId
from fabric.rpc_fallback.exchange import KEPT_MAX, KEPT_S, Exchange
from fabric.rpc_fallback.wire import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

ID = RequestId(1, 1)
FAR = Deadline(time.monotonic() + 600.0)


def outcome(text: bytes = b"a", lease: Lease | None = None) -> Outcome:
    return Outcome(text, b"", lease)


def never() -> Outcome:
    raise AssertionError("the node was asked again")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_delivered_answer_is_forgotten() -> None:
    exchange = Exchange()
    first = exchange.answer(ID, 0, outcome, FAR)
    assert first is not None
    exchange.delivered(ID, first)
    assert not exchange.busy()
    again = exchange.answer(ID, 0, lambda: outcome(b"b"), FAR)
    assert again is not None
    assert again.frame == b"b"


def test_an_undelivered_answer_waits_for_the_next_asker_and_keeps_its_memory() -> None:
    arena = Arena.create(1 << 16)
    exchange = Exchange()
    first = exchange.answer(ID, 0, lambda: outcome(b"a", Lease.of(arena, 4096)), FAR)
    assert first is not None
    exchange.undelivered(ID, first)
    assert arena.lent_bytes() == 4096
    assert exchange.answer(ID, 0, never, FAR) is first
    exchange.delivered(ID, first)
    assert arena.lent_bytes() == 0


def test_a_second_asker_takes_over_while_it_runs() -> None:
    exchange = Exchange()
    running, go = threading.Event(), threading.Event()
    got: list[Outcome | None] = []

    def slow() -> Outcome:
        running.set()
        assert go.wait(10.0)
        return outcome()

    def ask(run: Callable[[], Outcome]) -> None:
        got.append(exchange.answer(ID, 0, run, FAR))

    first = threading.Thread(target=ask, args=(slow,))
    first.start()
    assert running.wait(10.0)
    assert exchange.running(ID)
    second = threading.Thread(target=ask, args=(never,))
    second.start()
    while exchange._entries[ID].asker < 2:  # the second one stands in line
        threading.Event().wait(0.001)
    go.set()
    first.join(10.0)
    second.join(10.0)
    assert sorted(one is None for one in got) == [False, True]


def test_waiting_for_a_running_one_ends_by_its_deadline() -> None:
    clock = Clock()
    exchange = Exchange(clock)
    failed: list[DeadlineExceeded] = []

    def run() -> Outcome:
        with pytest.raises(DeadlineExceeded) as caught:
            exchange.answer(ID, 0, never, Deadline(clock()))
        failed.append(caught.value)
        return outcome()

    exchange.answer(ID, 0, run, FAR)
    assert len(failed) == 1


def test_an_error_that_is_not_the_ids_own_changes_nothing() -> None:
    exchange = Exchange()

    def run() -> Outcome:
        exchange.delivered(ID, outcome(b"other"))
        exchange.undelivered(ID, outcome(b"other"))
        assert exchange.running(ID)
        return outcome()

    assert exchange.answer(ID, 0, run, FAR) is not None


@pytest.mark.parametrize("why", ["acknowledged", "too old", "too many"])
def test_kept_answers_go(why: str) -> None:
    arena = Arena.create(1 << 20)
    clock = Clock()
    exchange = Exchange(clock)
    count = KEPT_MAX + 1 if why == "too many" else 3
    for number in range(1, count + 1):
        kept = exchange.answer(RequestId(1, number), 0, lambda: outcome(b"k", Lease.of(arena, 4096)), FAR)
        assert kept is not None
        exchange.undelivered(RequestId(1, number), kept)
    if why == "too old":
        clock.now = KEPT_S + 1.0
    exchange.answer(RequestId(1, 1000), 3 if why == "acknowledged" else 0, outcome, FAR)
    left = {"acknowledged": 1, "too old": 0, "too many": KEPT_MAX}[why]
    assert arena.lent_bytes() == left * 4096


def test_kept_memory_is_given_up_on_demand() -> None:
    exchange = Exchange()
    kept = exchange.answer(ID, 0, outcome, FAR)
    assert kept is not None
    exchange.undelivered(ID, kept)
    assert exchange.forget_kept() == 1
    assert exchange.forget_kept() == 0
