"""The pick: all local and a few remote ones, the cheapest, and dice between equals."""

from __future__ import annotations

import time
from collections import Counter
from random import Random

import pytest

from fabric.frame import Load
from fabric.transport import WireName
from router.pick import Nobody, Picked, pick
from tests.unit.router.fleet import Fleet, instance


def picked(fleet: Fleet, rng: Random, avoid: tuple[str, ...] = (), sample: int = 5) -> Picked:
    found = pick(fleet.core.offer("plan"), fleet.core.table.work.kind("plan", 32), 64, avoid, sample, rng, fleet.now)
    assert isinstance(found, Picked)
    return found


def test_equal_workers_get_equal_shares_before_the_first_report() -> None:
    fleet, rng = Fleet("a", "b", "c", "d"), Random(3)
    counts = Counter(picked(fleet, rng).worker.name for _ in range(10_000))
    chi_square = sum((counts[name] - 2500) ** 2 / 2500 for name in "abcd")
    assert chi_square < 11.34, "p < 0.01 for three degrees of freedom"


def test_the_sample_is_uniform_too() -> None:
    fleet, rng = Fleet(*(f"n{i}" for i in range(20))), Random(3)
    counts = Counter(picked(fleet, rng, sample=3).worker.name for _ in range(20_000))
    assert sum((counts[f"n{i}"] - 1000) ** 2 / 1000 for i in range(20)) < 36.19, "p < 0.01 for nineteen"


def test_the_same_seed_picks_the_same() -> None:
    fleet = Fleet(*(f"n{i}" for i in range(20)))
    first, second = Random(5), Random(5)
    assert [picked(fleet, first).worker.name for _ in range(50)] == [
        picked(fleet, second).worker.name for _ in range(50)
    ]


def test_all_local_ones_and_a_sample_of_remote_ones_are_priced() -> None:
    fleet = Fleet(*(f"n{i}" for i in range(20)), local=("n0", "n1", "n2"))
    assert picked(fleet, Random(1), sample=5).candidates == 8


def test_the_cheapest_wins_with_its_terms() -> None:
    fleet = Fleet("a", "b")
    fleet.worker("a").ahead.reported(Load(1, 0, 80_000, 2), fleet.now)
    found = picked(fleet, Random(1))
    assert found.worker.name == "b"
    other = picked(fleet, Random(1), avoid=("b",))
    assert other.terms[2] == pytest.approx(40.0)
    assert other.terms[0] == pytest.approx(sum(other.terms[1:]))
    assert other.excluded == (("b", "one that failed this request"),)


def test_the_one_that_failed_it_is_better_than_nobody() -> None:
    fleet = Fleet("a")
    assert picked(fleet, Random(1), avoid=("a",)).worker.name == "a"
    assert not picked(fleet, Random(1), avoid=("a",)).last_resort


def test_an_ejected_one_is_the_last_resort() -> None:
    fleet = Fleet("a", "b")
    for _ in range(3):
        fleet.worker("a").failed(last_usable=False, now=fleet.now)
    assert picked(fleet, Random(1)).worker.name == "b"
    fleet.worker("b").link_lost()
    found = picked(fleet, Random(1))
    assert (found.worker.name, found.last_resort) == ("a", True)


def test_nobody_says_why_worker_by_worker() -> None:
    fleet = Fleet("a", "b")
    fleet.worker("a").link_lost()
    fleet.worker("b").silent = True
    fleet.worker("b").link.alive = False  # type: ignore[union-attr]
    found = pick(fleet.core.offer("plan"), fleet.core.table.work.kind("plan", 32), 64, (), 5, Random(1), fleet.now)
    assert isinstance(found, Nobody)
    assert set(found.excluded) == {("a", "pending"), ("b", "silent")}


def test_many_routers_on_one_frozen_snapshot_do_not_run_to_one_worker() -> None:
    """64 routers, 32 workers, one request each: not more on one worker than dice would give (99 % below 9)."""
    peaks = []
    for trial in range(100):
        got = Counter(
            picked(Fleet(*(f"n{i}" for i in range(32))), Random(trial * 64 + router)).worker.name
            for router in range(64)
        )
        peaks.append(max(got.values()))
    assert sorted(peaks)[98] <= 8


def test_a_pick_among_256_costs_no_scan() -> None:
    fleet, rng = Fleet(*(f"n{i}" for i in range(256)), local=("n0",)), Random(1)
    fleet.core.offer("plan")
    best_s = 1.0
    for _ in range(20):
        began = time.perf_counter()
        for _ in range(50):
            picked(fleet, rng)
        best_s = min(best_s, (time.perf_counter() - began) / 50)
    assert best_s < 500e-6, "30 µs on an idle machine; a scan of 256 takes milliseconds"


def test_a_local_worker_is_local_by_its_link() -> None:
    fleet = Fleet()
    fleet.add(instance("near"), WireName.LOCAL)
    fleet.add(instance("far"), WireName.RPC)
    offer = fleet.core.offer("plan")
    assert [worker.name for worker in offer.local] == ["near"]
    assert [worker.name for worker in offer.remote] == ["far"]


def test_where_a_link_says_what_to_do_no_other_advice_is_given() -> None:
    told = Nobody((("a", "pending (the node asks for a token; set the rpc token)"),)).sentence("plan")
    assert (
        told == "no node can take a request of 'plan' now: a is pending (the node asks for a token; set the rpc token)"
    )
    assert (
        Nobody((("a", "ejected"),)).sentence("plan").endswith("(a is ejected); start another one, or try again later")
    )
