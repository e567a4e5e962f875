"""Our router in the simulator: near the oracle, far before what the field does, with a bounded number of reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.simulator.compare import Cell, compare, simulate
from router.simulator.measure import figures
from router.simulator.workload import W_GPU, W_LOCAL

SHORT = replace(W_GPU, requests=5000, warm_up=1000)


@pytest.fixture(scope="module")
def p99_ms() -> dict[str, float]:
    policies = ("peak-ewma", "polled-count", "prequal", "c3", "polled-work", "ours", "oracle")
    return {cell.policy: cell.figures.p99_ms for cell in compare(SHORT, policies, (0.9,), (1,))}


def test_ours_is_near_the_oracle(p99_ms: dict[str, float]) -> None:
    assert p99_ms["ours"] <= 1.25 * p99_ms["oracle"]


def test_ours_is_far_before_the_field(p99_ms: dict[str, float]) -> None:
    assert p99_ms["ours"] <= 0.4 * p99_ms["prequal"]
    assert p99_ms["ours"] <= 0.15 * p99_ms["peak-ewma"]


def test_the_order_of_the_field_is_the_published_one(p99_ms: dict[str, float]) -> None:
    assert p99_ms["polled-work"] < p99_ms["prequal"] < p99_ms["polled-count"] < p99_ms["peak-ewma"]
    assert p99_ms["c3"] < p99_ms["peak-ewma"]


def test_a_request_reads_five_pages_at_most() -> None:
    run = simulate(replace(SHORT, requests=1000, warm_up=100), "ours", 1)
    assert run.reads <= 5 * 1000
    assert run.probes == 0


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_sixty_four_routers_send_as_evenly_as_an_oracle_that_knows_all() -> None:
    """The most work that is sent to one worker within 100 ms over the mean; the shortest queue of a snapshot comes to
    2.8 of the oracle's. Fewer requests do not tell: with 4,000 one long one decides, 0.9 to 1.5 from seed to seed."""
    world = replace(W_GPU, demand=(1.0,) * 64, requests=20_000, warm_up=4_000)
    ours, oracle = compare(world, ("ours", "oracle"), (0.9,), range(1, 4))
    assert ours.figures.herd <= 1.3 * oracle.figures.herd


def test_local_first_needs_no_threshold() -> None:
    world = replace(W_LOCAL, requests=4000, warm_up=800)
    found = figures(simulate(world, "ours", 1))
    best = figures(simulate(world, "oracle", 1))
    assert found.p99_ms <= 1.2 * best.p99_ms
    slow = replace(world, far_s=0.003)
    assert figures(simulate(slow, "ours", 1)).p99_ms <= 1.25 * figures(simulate(slow, "oracle", 1)).p99_ms
    quiet = figures(simulate(replace(world, demand=(1.0,) * 8, load=0.6, far_s=0.003), "ours", 1))
    assert quiet.far_share <= 0.25, "with equal demand most stays at home"


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_within_reach_of_the_oracle_over_five_seeds() -> None:
    policies = ("peak-ewma", "prequal", "ours", "oracle")
    cells = {(cell.policy, cell.load): cell for cell in compare(W_GPU, policies, (0.9, 0.95), range(1, 6))}

    def p99(policy: str, load: float) -> float:
        cell: Cell = cells[policy, load]
        return cell.figures.p99_ms

    assert p99("ours", 0.9) <= 1.10 * p99("oracle", 0.9)
    assert p99("ours", 0.95) <= 1.25 * p99("oracle", 0.95)
    assert p99("ours", 0.9) <= 0.33 * p99("prequal", 0.9)
    assert p99("ours", 0.9) <= 0.1 * p99("peak-ewma", 0.9)
    assert cells["ours", 0.9].figures.messages <= 5.0


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("far_s", [0.0001, 0.003])
def test_near_and_far_within_reach_of_the_oracle_over_five_seeds(far_s: float) -> None:
    world = replace(W_LOCAL, far_s=far_s, requests=20_000, warm_up=4000)
    ours, oracle = compare(world, ("ours", "oracle"), (0.85,), range(1, 6))
    assert ours.figures.p99_ms <= 1.16 * oracle.figures.p99_ms


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_hints_that_lie_are_no_worse_than_none() -> None:
    """The goal without hints was 1.35 of the oracle; docs/routing.md tells what was tried."""
    world = replace(W_GPU, requests=40_000, warm_up=8000)
    (lies,) = compare(replace(world, hint_error=1.0), ("ours",), (0.9,), range(1, 6))
    blind, oracle = compare(replace(world, hint_error=None), ("ours", "oracle"), (0.9,), range(1, 6))
    assert blind.figures.p99_ms <= 1.75 * oracle.figures.p99_ms
    assert lies.figures.p99_ms <= blind.figures.p99_ms


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_copies_of_late_requests_cut_the_slowest_of_a_thousand_on_w_gpu() -> None:
    """One request in a hundred stalls for ten times its length where it runs first."""
    world = replace(W_GPU, stalled_share=0.01, requests=15_000, warm_up=3000)
    quiet, hedged = compare(world, ("ours-untied", "ours-hedged"), (0.5,), range(1, 4))
    assert hedged.figures.p999_ms <= 0.5 * quiet.figures.p999_ms
    assert hedged.figures.twice_share <= 0.05
    assert hedged.figures.messages <= 6.0
    (busy,) = compare(world, ("ours-hedged",), (0.9,), (1,))
    assert busy.figures.twice_share < hedged.figures.twice_share / 4


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_late_binding_passes_the_greedy_oracle() -> None:
    """By leaving the last percent behind: docs/decisions tells the price."""
    world = replace(W_GPU, requests=40_000, warm_up=8000)
    pulled, greedy = compare(world, ("pulled", "greedy"), (0.95,), range(1, 6))
    assert pulled.figures.p99_ms <= greedy.figures.p99_ms
    assert pulled.figures.messages <= 8.0
    assert pulled.figures.twice_share == 0.0
