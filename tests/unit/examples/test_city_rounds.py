"""Rounds: the same seed gives the same bytes, shards are uneven, and cutting into shards changes no answer."""

from pathlib import Path

import numpy as np
import pytest

from examples.dispatch.city.generate import CityPlan, apportion, area_shares, city_round, nearest_riders
from examples.dispatch.city.real import RealPlan, grubhub_round, lilim_round
from examples.dispatch.city.rounds import Round, with_matrices, with_shared_matrices
from examples.dispatch.data import grubhub, lilim
from examples.dispatch.route_plan import Batch, Options, Order, Pair, Rider, Solver, Status, solve_batch
from examples.dispatch.route_plan.layout import NO_STOP

SMALL = CityPlan(seed=3, orders=100, riders=300, near=8, options=Options(starts=4))


def shards_answer_as_the_whole(made: Round) -> None:
    whole = solve_batch(made.batch).tensors()
    rows = np.zeros(made.pairs, bool)
    for shard in made.shards():
        assert not rows[shard.rows].any()
        rows[shard.rows] = True
        answer = shard.reference()
        for name, array in answer.tensors().items():
            assert array.tobytes() == whole[name][shard.rows].tobytes(), name
        again = solve_batch(Batch.from_tensors(shard.tensors()))
        assert all(array.tobytes() == again.tensors()[name].tobytes() for name, array in answer.tensors().items())
    assert rows.all()


def test_the_full_city_has_the_sourced_sizes_and_uneven_shards() -> None:
    made = city_round(CityPlan())
    assert made.pairs == 663 * 64
    assert len(made.batch.riders) == 2585
    in_hand = np.diff(made.batch.hand_start)
    assert in_hand.max() == 5
    assert np.isin(in_hand, (1, 2, 3)).mean() > 0.6
    sizes = np.bincount(made.shard_of)
    assert sizes.max() > 10 * np.median(sizes[sizes > 0])
    planned = (np.diff(made.batch.route_start) > 0) | (in_hand == 0)
    assert planned.mean() > 0.95
    fresh = made.batch.orders[made.batch.pairs[::64, Pair.FIRST]]
    ready = fresh[:, Order.READY] - (fresh[:, Order.DUE] - 2400)
    assert 800 < np.median(ready) < 1000
    assert 1600 < np.quantile(ready, 0.9) < 2000


def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    first, again, other = city_round(SMALL), city_round(SMALL), city_round(CityPlan(4, 100, 300, 8))
    for name, array in first.batch.tensors().items():
        assert array.tobytes() == again.batch.tensors()[name].tobytes(), name
    assert first.batch.riders.tobytes() != other.batch.riders.tobytes()


def test_shards_of_a_city_answer_as_the_whole() -> None:
    made = city_round(SMALL)
    shards_answer_as_the_whole(made)
    sizes = [len(shard.rows) for shard in made.shards()]
    assert sizes == sorted(sizes, reverse=True)
    assert (solve_batch(made.batch).status == Status.OK).mean() > 0.9


def test_a_city_in_matrix_mode_answers_the_same() -> None:
    batch = city_round(SMALL).batch
    plain, heavy = solve_batch(batch).tensors(), solve_batch(with_matrices(batch)).tensors()
    for name, array in plain.items():
        assert array.tobytes() == heavy[name].tobytes(), name


def test_shards_that_share_their_tables_answer_the_same() -> None:
    shards = list(city_round(SMALL).shards())
    sharing = with_shared_matrices(shards)
    assert (
        len({id(shard.batch.seconds) for shard in sharing}) == len({id(shard.batch.metres) for shard in sharing}) == 1
    )
    for plain, heavy in zip(shards, sharing, strict=True):
        for name, array in plain.reference().tensors().items():
            assert array.tobytes() == heavy.reference().tensors()[name].tobytes(), name


def test_routes_in_hand_make_insertion_possible() -> None:
    made = city_round(CityPlan(5, 40, 120, 4, options=Options(solver=Solver.INSERT)))
    answer = solve_batch(made.batch)
    for pair, status, stops in zip(made.batch.pairs, answer.status, answer.stops, strict=True):
        if status != Status.OK:
            continue
        first, last = made.batch.route_start[pair[Pair.RIDER] : pair[Pair.RIDER] + 2]
        held = made.batch.route[first:last]
        kept = [stop for stop in stops if stop != NO_STOP and stop in held]
        assert kept == held.tolist()


def test_pruning_keeps_the_nearest_riders() -> None:
    rng = np.random.default_rng(1)
    riders, orders = np.zeros((50, len(Rider)), np.int32), np.zeros((7, len(Order)), np.int32)
    riders[:, [Rider.X, Rider.Y]] = rng.integers(0, 1000, (50, 2))
    orders[:, [Order.PICKUP_X, Order.PICKUP_Y]] = rng.integers(0, 1000, (7, 2))
    pairs = nearest_riders(orders, riders, 6)
    for row in range(7):
        away = np.hypot(
            riders[:, Rider.X] - orders[row, Order.PICKUP_X], riders[:, Rider.Y] - orders[row, Order.PICKUP_Y]
        )
        kept = pairs[pairs[:, Pair.FIRST] == row, Pair.RIDER]
        assert len(set(kept.tolist())) == 6
        assert away[kept].max() <= np.delete(away, kept).min()
    assert len(nearest_riders(orders, riders, 64)) == 7 * 50


def test_apportioning_gives_away_exactly_the_total() -> None:
    for total in (0, 1, 7, 663):
        parts = apportion(total, area_shares(64))
        assert parts.sum() == total
        assert (parts >= 0).all()
        assert np.abs(parts - total * area_shares(64)).max() < 1


def test_rounds_of_real_problems(data: Path) -> None:
    folder = data / "tsppd_grubhub"
    problems, optima = grubhub.load_problems(folder), grubhub.load_optima(folder / "optimal.csv")
    made = grubhub_round(problems, optima, RealPlan(pairs=1000, shards=16, seed=1))
    assert made.pairs == 1000
    assert len(np.unique(made.shard_of)) == 16
    shards_answer_as_the_whole(made)
    answer = solve_batch(made.batch)
    assert (answer.status == Status.OK).all()
    routes = lilim.load_routes(data / "pdptw_lilim" / "routes_100_vroom.json")
    instances = [lilim.load_problem(path) for path in sorted((data / "pdptw_lilim" / "li_lim_100").glob("*.txt"))]
    hard = Options(solver=Solver.TWO_STAGE, starts=4, late_cost=0, wait_cost=0, hard_tw=True)
    made = lilim_round(instances, routes, RealPlan(pairs=120, shards=4, seed=2), hard)
    shards_answer_as_the_whole(made)
    assert (solve_batch(made.batch).status == Status.OK).mean() > 0.9


@pytest.mark.parametrize("plan", [CityPlan(orders=0), CityPlan(riders=0), CityPlan(near=0), CityPlan(side_m=3)])
def test_a_city_of_nothing_is_refused(plan: CityPlan) -> None:
    with pytest.raises(ValueError, match="at least one"):
        city_round(plan)
