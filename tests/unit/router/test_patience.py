"""What cannot be in time is refused at once, with figures; the least urgent first; never for its own length alone."""

from __future__ import annotations

import pytest

from fabric import errors
from fabric.deadline import Deadline
from fabric.errors import Fate
from fabric.frame import Load
from router.config import RouterConfig
from router.dispatch import Attempt
from tests.unit.router.fleet import Fleet, answer, body


def busy(ms: float, *, refuse: bool = True) -> Fleet:
    """Two workers that know the model, with so much to do each."""
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, refuse_late=refuse))
    for sequence, worker in enumerate(fleet.core.table.workers):
        worker.speed.learn(fleet.core.table.work.kind("plan", body().layout.body_bytes), 10.0, fleet.now)
        worker.ahead.reported(Load(sequence + 1, 0, int(ms * 1000), 1), fleet.now)
    return fleet


def send(fleet: Fleet, timeout_s: float, priority: int = 0) -> object:
    life = fleet.core.life("plan", body(), Deadline(fleet.now + timeout_s), priority, idempotent=True)
    step = life.send(None)
    life.close()
    return step


def test_a_request_that_would_be_late_is_refused_and_told_by_how_much() -> None:
    fleet = busy(300.0)
    with pytest.raises(errors.DeadlineExceeded, match=r"\d+ ms after its time; send it again in 2\d\d ms") as caught:
        send(fleet, 0.1)
    assert caught.value.fate is Fate.NEVER_RAN
    fleet.assert_idle()
    assert isinstance(send(fleet, 0.5), Attempt)


def test_its_own_length_is_no_reason_since_it_is_learned_from_runs() -> None:
    fleet = busy(0.0)
    assert isinstance(send(fleet, 0.005), Attempt)


def test_what_nobody_ran_yet_is_sent() -> None:
    fleet = Fleet("a")
    fleet.worker("a").ahead.reported(Load(1, 0, 900_000, 1), fleet.now)
    assert isinstance(send(fleet, 0.1), Attempt)


def test_the_least_urgent_are_refused_first() -> None:
    fleet = busy(150.0)
    for priority in (0, 1, 128):
        assert isinstance(send(fleet, 0.3, priority), Attempt)
    with pytest.raises(errors.DeadlineExceeded, match="its priority allows"):
        send(fleet, 0.3, 255)
    fleet.assert_idle()


def test_it_can_be_switched_off() -> None:
    assert isinstance(send(busy(300.0, refuse=False), 0.1), Attempt)


def test_a_retry_that_would_be_late_tells_its_story() -> None:
    fleet = busy(0.0)
    life = fleet.life(timeout_s=0.2)
    fleet.send(life)
    for worker in fleet.core.table.workers:
        worker.ahead.reported(Load(99, 9, 900_000, 1), fleet.now)
    with pytest.raises(errors.DeadlineExceeded, match="1 attempt failed"):
        fleet.send(life, errors.QueueFull("full"))
    fleet.assert_idle()
    assert answer().compute_us == 1000
