"""What a caller's hint is worth: right ones are believed, wrong ones less, lies not at all."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from random import Random

import pytest

from fabric import errors
from router.hints import HintedKind, Hints, check_hint
from router.simulator.compare import simulate
from router.simulator.measure import figures
from router.simulator.workload import W_GPU


def kind(error: float, rng: Random, count: int = 2000, *, lie: bool = False) -> HintedKind:
    found = Hints().kind("plan")
    for _ in range(count):
        work = exp(rng.gauss(3.0, 0.8))
        hint = exp(rng.gauss(3.0, 0.8)) if lie else work * exp(rng.gauss(0.0, error))
        found.heard(hint, work)
    return found


def test_right_hints_are_believed() -> None:
    assert kind(0.0, Random(1)).believed == pytest.approx(1.0, abs=0.02)


def test_an_error_of_thirty_percent_costs_a_tenth_of_the_belief() -> None:
    assert kind(0.3, Random(1)).believed == pytest.approx(0.64 / (0.64 + 0.09), abs=0.05)


def test_a_liar_is_not_believed_and_every_request_is_a_usual_one() -> None:
    liar = kind(0.0, Random(1), lie=True)
    assert liar.believed < 0.15
    assert liar.units(400.0) / liar.units(1.0) < 400.0**0.2


def test_belief_comes_back_when_the_liar_mends_his_ways() -> None:
    rng = Random(1)
    found = kind(0.0, rng, lie=True)
    for _ in range(2000):
        work = exp(rng.gauss(3.0, 0.8))
        found.heard(work, work)
    assert found.believed > 0.9


def test_before_anything_is_known_half_of_a_hint_is_believed() -> None:
    assert Hints().kind("plan").believed == 0.5


def test_hints_that_are_all_alike_teach_nothing_and_break_nothing() -> None:
    found = Hints().kind("plan")
    for _ in range(100):
        found.heard(5.0, 20.0)
    assert found.units(5.0) == pytest.approx(5.0)


@pytest.mark.parametrize("hint", [0.0, -1.0, float("nan"), float("inf"), "much", True])
def test_what_is_no_cost_is_refused(hint: object) -> None:
    with pytest.raises(errors.InvalidArgument, match="cost hint"):
        check_hint(hint)  # type: ignore[arg-type]
    assert check_hint(None) == 0.0
    assert check_hint(3) == 3.0


def test_hints_that_are_wrong_by_as_much_as_costs_differ_are_no_worse_than_none() -> None:
    short = replace(W_GPU, requests=5000, warm_up=1000)
    wrong = figures(simulate(replace(short, hint_error=1.0), "ours", 1)).p99_ms
    none = figures(simulate(replace(short, hint_error=None), "ours", 1)).p99_ms
    assert wrong <= 1.1 * none
