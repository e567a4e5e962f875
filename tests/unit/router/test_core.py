"""One request from pick to reply: where it goes, what it learns, and that no way out of it leaves a count behind."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from discovery.instance import Readiness
from fabric import errors
from fabric.errors import Fate
from fabric.frame import Load
from fabric.transport import WireName
from router.config import RouterConfig
from router.dispatch import Attempt
from router.steps import Wait
from router.table import Dial, Drop
from router.workers import State
from tests.unit.router.fleet import LEDGER, Fleet, answer, facts, instance, name_of


def test_a_request_goes_out_and_comes_back_with_its_trace() -> None:
    fleet = Fleet("a")
    life = fleet.life()
    step = fleet.send(life)
    assert (step.call.id.request_no, step.call.ack_no, step.call.attempt) == (1, 1, 0)
    fleet.now += 0.004
    reply = fleet.finish(life, answer(compute_us=1000))
    np.testing.assert_array_equal(reply["y"], np.arange(3, dtype=np.float32))
    assert not reply["y"].flags.writeable
    trace = reply.trace
    assert (trace.worker, trace.wire, trace.attempts, trace.candidates) == ("a", "rpc", 1, 1)
    assert trace.compute_ms == 1.0
    assert trace.transport_ms == pytest.approx(3.0)
    assert trace.price.total_ms > 0.0
    fleet.assert_idle()


def test_a_lost_worker_is_out_at_once_and_the_request_goes_elsewhere() -> None:
    fleet = Fleet("a", "b")
    life = fleet.life()
    first = fleet.send(life)
    first.link.alive = False  # type: ignore[misc]
    second = fleet.send(life, errors.NodeLost("the node was lost"))
    assert name_of(second) != name_of(first)
    assert second.call.id == first.call.id
    assert second.call.attempt == 1
    assert fleet.worker(name_of(first)).state is State.PENDING
    assert [type(command) for command in fleet.commands] == [Drop, Dial]
    assert fleet.finish(life, answer()).trace.attempts == 2
    fleet.assert_idle()


def test_an_unknown_fate_of_the_ledger_is_surfaced_and_never_sent_again() -> None:
    fleet = Fleet("a", "b")
    life = fleet.life("ledger")
    fleet.send(life)
    with pytest.raises(errors.ExecutorLost) as caught:
        life.send(errors.ExecutorLost("its executor ended"))
    assert caught.value.fate is Fate.UNKNOWN
    fleet.assert_idle()


def test_a_refusal_of_the_ledger_goes_elsewhere() -> None:
    fleet = Fleet("a", "b")
    life = fleet.life("ledger")
    first = fleet.send(life)
    assert name_of(fleet.send(life, errors.QueueFull("full"))) != name_of(first)
    fleet.finish(life, answer())
    fleet.assert_idle()


def test_the_only_worker_is_asked_again_though_it_failed() -> None:
    fleet = Fleet("a")
    life = fleet.life()
    fleet.send(life)
    assert name_of(fleet.send(life, errors.QueueFull("full"))) == "a"
    fleet.finish(life, answer())


def test_one_node_that_is_not_idempotent_makes_the_model_so() -> None:
    fleet = Fleet("a")
    fleet.add(instance("b", LEDGER, facts("plan", idempotent=False)))
    assert not fleet.core.offer("plan").idempotent


def test_load_reports_steer_the_next_request_away() -> None:
    fleet = Fleet("a", "b")
    life = fleet.life()
    busy = name_of(fleet.send(life))
    fleet.finish(life, answer(Load(1, 1, 500_000, 1)))
    for _ in range(5):
        life = fleet.life()
        assert name_of(fleet.send(life)) != busy
        life.close()
    fleet.assert_idle()


def test_own_dispatches_spread_a_burst_before_any_report() -> None:
    fleet = Fleet("a", "b")
    lives = [fleet.life() for _ in range(10)]
    sent = [name_of(fleet.send(life)) for life in lives]
    assert sent.count("a") == sent.count("b") == 5
    for life in lives:
        life.close()
    fleet.assert_idle()


def test_a_draining_node_gets_nothing_more() -> None:
    fleet = Fleet("a", "b")
    fleet.update(instance("a"), Readiness.DRAINING)
    for _ in range(10):
        life = fleet.life()
        assert name_of(fleet.send(life)) == "b"
        life.close()


def test_a_node_that_says_it_drains_is_believed_before_the_registry_tells() -> None:
    fleet = Fleet("a", "b")
    life = fleet.life()
    draining = name_of(fleet.send(life))
    fleet.send(life, errors.Draining("it drains"))
    life.close()
    for _ in range(10):
        life = fleet.life()
        assert name_of(fleet.send(life)) != draining
        life.close()


def test_a_removed_node_with_a_healthy_link_finishes_its_work_and_is_the_last_resort() -> None:
    fleet = Fleet("a", "b")
    running = fleet.life()
    name = name_of(fleet.send(running))
    other = "b" if name == "a" else "a"
    assert fleet.remove(name) == ()
    life = fleet.life()
    assert name_of(fleet.send(life)) == other
    life.close()
    fleet.finish(running, answer())
    fleet.lose(other)
    life = fleet.life()
    assert name_of(fleet.send(life)) == name
    life.close()


def test_nobody_to_take_it_is_unavailable_at_the_deadline_and_says_why() -> None:
    fleet = Fleet("a")
    fleet.lose("a")
    life = fleet.life(timeout_s=0.2)
    with pytest.raises(errors.Unavailable, match=r"no node can take a request of 'plan' now .*a is"):
        fleet.send(life)
    assert 100.2 <= fleet.now < 100.3
    fleet.assert_idle()


def test_a_request_waits_for_a_node_that_restarts() -> None:
    fleet = Fleet("a")
    life = fleet.life()
    fleet.send(life)
    fleet.lose("a")
    fleet.remove("a")
    assert isinstance(life.send(errors.NodeLost("lost")), Wait)
    for _ in range(3):
        assert isinstance(life.send(None), Wait)
    fleet.add(instance("a", epoch=2))
    fleet.send(life)
    assert fleet.finish(life, answer()).trace.attempts == 2
    fleet.assert_idle()


def test_a_worker_that_comes_up_while_a_request_waits_takes_it() -> None:
    fleet = Fleet("a")
    fleet.update(instance("a"), Readiness.STARTING)
    fleet.lose("a")
    life = fleet.life()
    assert isinstance(life.send(None), Wait)
    fleet.add(instance("b"))
    assert name_of(fleet.send(life)) == "b"
    life.close()


def test_a_closed_router_ends_those_that_wait() -> None:
    fleet = Fleet("a")
    fleet.lose("a")
    life = fleet.life()
    life.send(None)
    fleet.core.close()
    with pytest.raises(errors.RouterClosed):
        life.send(None)
    fleet.assert_idle()


def test_a_thousand_losses_at_once_retry_in_line_and_never_more_than_the_budget() -> None:
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, eject_after=2000))
    lives = [fleet.life(timeout_s=60.0) for _ in range(1000)]
    for life in lives:
        fleet.send(life)
    waiting = {life: life.send(errors.NodeLost("lost")) for life in lives}
    assert fleet.core.budget.granted == 203
    out: list[object] = []
    for _ in range(400):
        for life, step in list(waiting.items()):
            assert fleet.core.budget.retrying <= 203
            if isinstance(step, Attempt):
                fleet.finish(life, answer())
                out.append(life)
                del waiting[life]
            else:
                waiting[life] = life.send(None)
    assert len(out) == 1000
    fleet.assert_idle()


def test_a_thousand_refusals_at_once_get_two_hundred_and_three_retries() -> None:
    fleet = Fleet("a", "b")
    lives = [fleet.life() for _ in range(1000)]
    for life in lives:
        fleet.send(life)
    refused = 0
    for life in lives:
        try:
            life.send(errors.QueueFull("full"))
        except errors.QueueFull:
            refused += 1
    assert (fleet.core.budget.granted, refused > 700) == (203, True)
    for life in lives:
        life.close()
    fleet.assert_idle()


@pytest.mark.parametrize("seed", range(5))
def test_a_thousand_random_ends_leave_nothing_counted(seed: int) -> None:
    """Cancelled at any step, answered, lost or refused: every count is zero afterwards, and every number was acked."""
    rng, fleet = Random(seed), Fleet("a", "b", "c", local=("a",))
    live: list[tuple[object, Attempt | Wait]] = []
    begun, sequence = 0, 0
    outcomes = [
        errors.NodeLost("lost"),
        errors.QueueFull("full"),
        errors.DeadlineExceeded("late"),
        errors.ModelFailed("no"),
    ]
    while begun < 1000 or live:
        fleet.now += rng.random() * 0.01
        if begun < 1000 and (not live or rng.random() < 0.4):
            life = fleet.life(rng.choice(["plan", "ledger"]))
            live.append((life, life.send(None)))
            begun += 1
            continue
        at = rng.randrange(len(live))
        life, step = live.pop(at)
        if rng.random() < 0.3:
            life.close()
            continue
        sequence += 1
        outcome = None
        if isinstance(step, Attempt):
            report = Load(sequence, rng.randrange(begun), rng.randrange(90_000), 2)
            outcome = answer(report) if rng.random() < 0.6 else rng.choice(outcomes)
        try:
            live.append((life, life.send(outcome)))
        except (StopIteration, errors.OverspillError):
            continue
    fleet.assert_idle()
    assert fleet.core.accounting.ack_no == 1001


def test_an_attempt_that_was_cut_short_counts_against_the_worker() -> None:
    fleet = Fleet("a", "b", config=RouterConfig(seed=1, eject_after=1))
    for _ in range(6):  # both are known now, so the time is split
        life = fleet.life()
        fleet.send(life)
        fleet.now += 0.002
        fleet.finish(life, answer(Load(_ + 1, 0, 0, 1)))
    life = fleet.life()
    first = fleet.send(life)
    assert first.deadline.at_s == pytest.approx(fleet.now + 0.5)
    fleet.now = first.deadline.at_s
    second = fleet.send(life, errors.DeadlineExceeded("no answer in time"))
    assert name_of(second) != name_of(first)
    assert fleet.worker(name_of(first)).state is State.EJECTED
    fleet.finish(life, answer())


def test_a_local_worker_wins_while_its_queue_is_short() -> None:
    fleet = Fleet("near", "far", local=("near",))
    for _ in range(5):
        life = fleet.life()
        assert name_of(fleet.send(life)) == "near"
        fleet.now += 0.002
        fleet.finish(life, answer(Load(_ + 1, _ + 1, 0, 1), wire=WireName.LOCAL))
    life = fleet.life()
    fleet.send(life)
    fleet.finish(life, answer(Load(9, 6, 400_000, 1), wire=WireName.LOCAL))
    life = fleet.life()
    assert name_of(fleet.send(life)) == "far"
    life.close()
