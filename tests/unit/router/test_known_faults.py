"""Faults that were reported of other routers in the open, tried on this one (docs/routing.md lists all of them)."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import fields, replace
from random import Random

import numpy as np
import pytest

from discovery.instance import Insert
from fabric import errors
from fabric.errors import Fate
from fabric.frame import Load
from fabric.link.wires import LinkConfig
from fabric.settings import ARENA_BYTES_LEAST
from router.config import RouterConfig
from tests.unit.router.fleet import Fleet, answer, instance, name_of
from tests.unit.router.town import Node, Town, shares

MS = 0.001


def test_a_disconnected_caller_leaves_no_count_and_a_restarted_worker_does_not_get_everything() -> None:
    """A count that each cancelled request leaves behind makes whoever restarts with 0 the best forever."""
    fleet, rng = Fleet("a", "b", "c"), Random(4)
    for _ in range(300):
        life = fleet.life()
        step = life.send(None)
        if rng.random() < 0.5:
            life.close()
        else:
            fleet.finish(life, answer(Load(int(fleet.now * 1000) + _, 0, 0, 1)))
            del step
    fleet.assert_idle()
    fleet.remove("c")
    fleet.lose("c")
    fleet.add(instance("c", epoch=2))
    lives = [fleet.life() for _ in range(60)]
    counts = Counter(name_of(fleet.send(life)) for life in lives)
    assert max(counts.values()) <= 30, "a worker that begins anew is not the place for all"
    for life in lives:
        life.close()
    fleet.assert_idle()


def test_being_told_of_health_moves_no_count() -> None:
    """A health check that zeroes live counters sends everything to the worker it has just looked at."""
    fleet = Fleet("a", "b")
    lives = [fleet.life() for _ in range(100)]
    for life in lives:
        fleet.send(life)
    out = {worker.name: (worker.ahead.out, worker.ahead.wait_ms(fleet.now)) for worker in fleet.core.table.workers}
    for _ in range(50):
        for worker in fleet.core.table.workers:
            worker.silent = not worker.silent
            fleet.core.table.changed((Insert(replace(worker.instance)),))
            fleet.core.table.wire_changed(worker)
    now = {worker.name: (worker.ahead.out, worker.ahead.wait_ms(fleet.now)) for worker in fleet.core.table.workers}
    assert now == out
    for life in lives:
        life.close()


def test_a_thousand_requests_one_after_the_other_leave_the_last_as_cheap_as_the_first() -> None:
    """A counter that is only ever raised fills up, and each later request then waits for probes."""
    fleet = Fleet("a")
    for number in range(1000):
        life = fleet.life()
        sent = fleet.send(life)
        assert sent.picked.terms[2:4] == (0.0, 0.0), number
        fleet.finish(life, answer(Load(number + 1, number + 1, 0, 1)))
    fleet.assert_idle()


def test_each_setting_is_read_back_and_the_impossible_ones_are_refused() -> None:
    """An expiry that was read from the field beside it is found by no test that leaves all fields at their defaults."""
    given: dict[str, object] = {}
    for number, setting in enumerate(fields(RouterConfig)):
        default = getattr(RouterConfig(), setting.name)
        if isinstance(default, bool):
            given[setting.name] = not default
        elif isinstance(default, LinkConfig):
            given[setting.name] = LinkConfig()
        elif setting.name == "panic":
            given[setting.name] = "fail"
        elif isinstance(default, str):
            given[setting.name] = f"text {number}"
        elif isinstance(default, float):
            given[setting.name] = (number + 1) / 100.0
        else:
            given[setting.name] = number + (ARENA_BYTES_LEAST if setting.name == "arena_bytes" else 1)
    config = RouterConfig(**given)  # type: ignore[arg-type]
    assert {setting.name: getattr(config, setting.name) for setting in fields(config)} == given
    for bad in ({"eject_first_s": 0.0}, {"backoff_first_s": float("nan")}, {"remote_sample": 0}):
        with pytest.raises(errors.ConfigError):
            RouterConfig(**bad)  # type: ignore[arg-type]


def test_a_worker_that_tells_nonsense_neither_gets_nor_loses_everything() -> None:
    """One weight that is not a number made whole tables of weights so."""
    fleet, rng = Fleet("a", "b", "c"), Random(2)
    counts = Counter[str]()
    for number in range(600):
        life = fleet.life()
        step = fleet.send(life)
        name = name_of(step)
        counts[name] += 1
        fleet.now += 5 * MS
        load = Load(number + 1, rng.choice((0, 1 << 63)), rng.choice((0, (1 << 64) - 1)), rng.choice((0, 1, 9)))
        if name != "a":  # on its page it tells nonsense too, whoever is asked
            fleet.worker("a").ahead.reported(load, fleet.now)
            load = Load(number + 1, counts[name], 0, 1)
        fleet.finish(life, answer(load, compute_us=4000))
        for worker in fleet.core.table.workers:
            assert all(np.isfinite(worker.ahead.wait_ms(fleet.now)))
    assert min(counts["b"], counts["c"]) > 60
    fleet.assert_idle()


def test_ten_thousand_requests_at_once_keep_a_pick_quick() -> None:
    """Too many requests that are out starved the deadline of probes, and froze a proxy."""
    fleet = Fleet("a", "b", "c", "d")
    took_s, lives = [], []
    for _ in range(10_000):
        life = fleet.life(timeout_s=100.0)
        began_s = time.thread_time()
        lives.append((life, name_of(fleet.send(life))))
        took_s.append(time.thread_time() - began_s)
    numbers = Counter[str]()
    for life, name in lives:
        numbers[name] += 1
        began_s = time.thread_time()
        fleet.finish(life, answer(Load(numbers[name], numbers[name], 0, 1)))
        took_s.append(time.thread_time() - began_s)
    assert float(np.percentile(took_s, 99)) < 0.005
    first_s, last_s = float(np.median(took_s[:1000])), float(np.median(took_s[9000:10_000]))
    assert last_s < 5 * first_s, "what is out makes no pick dearer"
    fleet.assert_idle()


def test_each_of_eight_workers_is_drained_and_replaced_in_turn_and_nothing_fails() -> None:
    town = Town(**{f"n{number}": Node(10 * MS, MS, 2) for number in range(8)})
    for number in range(8):
        old, new = f"n{number}", f"m{number}"
        town.run(11, 200)  # of sixteen executors: 70 % busy
        lives = [town.life() for _ in range(11)]
        sent = [(life, town.send(life)) for life in lives]
        life, refused = next(((life, step) for life, step in sent if name_of(step) == old), sent[0])
        town.nodes[new] = Node(10 * MS, MS, 2)
        town.add(instance(new))
        name = name_of(refused)
        again = town.send(life, errors.Draining("the node is draining; send the request to another one"))
        assert name_of(again) != name
        later = [town.life() for _ in range(20)]
        assert name not in {name_of(town.send(each)) for each in later}, "a node that drains is believed at once"
        for each in later:
            town.finish(each, answer())
        sent = [(each, step) for each, step in sent if each is not life]
        for each, _ in [*sent, (life, again)]:
            town.finish(each, answer())
        town.remove(old)
        town.lose(old)
        served = town.run(11, 200)
        assert len(served) == 200
        assert old not in shares(served)
        assert shares(served)[new] > 0.0


def test_a_worker_whose_gpu_breaks_is_left_within_a_second_and_tried_again_alone() -> None:
    """A sticky CUDA error, an ECC fault or a restart by the sentinel ends requests with `ExecutorLost`."""
    fleet = Fleet("a", "b")
    for number in range(20):
        life = fleet.life()
        fleet.send(life)
        fleet.finish(life, answer(Load(number + 1, 0, 0, 1), compute_us=5000))
    began_s, seen = fleet.now, 0
    while not fleet.worker("a").why_not(fleet.now):
        fleet.worker("b").ahead.reported(Load(1000 + seen, 0, 9000, 1), fleet.now)  # b is busy: a looks better
        life = fleet.life()
        step = fleet.send(life)
        if name_of(step) == "a":
            seen += 1
            step = fleet.send(life, errors.ExecutorLost("fenced after a sticky CUDA error", Fate.UNKNOWN))
            assert name_of(step) == "b", "it is sent elsewhere, once, inside the budget"
        fleet.finish(life, answer(compute_us=5000))
        fleet.now += 5 * MS
        assert fleet.now < began_s + 1.0
    assert "ejected" in fleet.worker("a").why_not(fleet.now)
    assert fleet.core.statistics().retries == seen
    fleet.now += 1.1
    assert not fleet.worker("a").why_not(fleet.now)  # on probation from now on: one request at a time
    held = []
    for _ in range(20):
        life = fleet.life()
        held.append((life, name_of(fleet.send(life))))
    assert Counter(name for _, name in held)["a"] <= 1
    for life, _ in held:
        fleet.finish(life, answer(compute_us=5000))
    assert not fleet.worker("a").why_not(fleet.now)
    fleet.assert_idle()
