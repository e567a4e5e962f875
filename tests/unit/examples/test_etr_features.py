"""The walk of a plan and its tensors, against a plain Python walk and against numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import fractions
import math

import numpy as np
import pytest

from examples.dispatch.etr import rounds
from examples.dispatch.etr.features import (
    DELIVERY,
    DENSE,
    ID_BUCKETS,
    IDS,
    PICKUP,
    STOPS,
    NotFinite,
    PairContext,
    PlannedRoutes,
    check_finite,
    features_from_plan,
    grid_cell,
)
from examples.dispatch.etr.plan import RouteTasks, legs_by_place, walk


def random_tasks(pairs: int, orders: int, seed: int) -> RouteTasks:
    rng = np.random.default_rng(seed)

    def draw(low: int, high: int, *shape: int) -> np.ndarray:
        return rng.integers(low, high, (pairs, *shape)).astype(np.int32)

    return RouteTasks(
        place_m=draw(-3000, 3000, 2 * orders + 1, 2),
        ready_s=draw(-600, 1800, orders),
        due_s=draw(-300, 3600, orders),
        pickup_service_s=draw(60, 300, orders),
        delivery_service_s=draw(60, 300, orders),
        load=draw(1, 4, orders),
        on_board=rng.random((pairs, orders)) < 0.3,
        is_new=np.arange(orders) == rng.integers(0, orders, (pairs, 1)),
    )


def random_routes(tasks: RouteTasks, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Any order of the stops will do for the walk; -1 and other rubbish stands in the padding."""
    rng = np.random.default_rng(seed)
    pairs, orders = tasks.load.shape
    codes = rng.integers(-9, 99, (pairs, width)).astype(np.int32)
    counts = np.zeros(pairs, np.int32)
    for row in range(pairs):
        stops = [2 * i + 2 for i in range(orders)] + [2 * i + 1 for i in range(orders) if not tasks.on_board[row, i]]
        stops = list(rng.permutation(stops))[: rng.integers(0, len(stops) + 1)]
        codes[row, : len(stops)], counts[row] = stops, len(stops)
    return codes, counts


def context_of(pairs: int) -> PairContext:
    fields = {}
    for number, field in enumerate(dataclasses.fields(PairContext)):
        dtype = np.int32 if number < 7 else np.float32
        fields[field.name] = (np.arange(pairs) + 10 * number).astype(dtype)
    return PairContext(**fields)


def test_the_walk_equals_a_plain_python_walk() -> None:
    tasks = random_tasks(40, 5, seed=1)
    codes, counts = random_routes(tasks, 12, seed=2)
    legs = legs_by_place(codes, counts, tasks.place_m, 1300, np.arange(200, 240))
    routes = walk(codes, counts, tasks, legs)
    for row in range(40):
        here = [int(v) for v in tasks.place_m[row, 0]]
        now, load = 0, int((tasks.load[row] * tasks.on_board[row]).sum())
        for column, code in enumerate(codes[row, : counts[row]].tolist()):
            order, pickup = (code - 1) // 2, code % 2 == 1
            there = [int(v) for v in tasks.place_m[row, code]]
            metres = math.ceil(1.3 * math.sqrt((there[0] - here[0]) ** 2 + (there[1] - here[1]) ** 2))
            arrive = now + math.ceil(fractions.Fraction(60 * metres, 200 + row))
            wait = max(int(tasks.ready_s[row, order]) - arrive, 0) if pickup else 0
            service = int((tasks.pickup_service_s if pickup else tasks.delivery_service_s)[row, order])
            load += int(tasks.load[row, order]) * (1 if pickup else -1)
            assert routes.leg_m[row, column] == metres
            assert routes.arrive_s[row, column] == arrive
            assert routes.wait_s[row, column] == wait
            assert routes.load[row, column] == load
            assert routes.stop_type[row, column] == (PICKUP if pickup else DELIVERY)
            assert routes.is_new[row, column] == tasks.is_new[row, order]
            here, now = there, arrive + wait + service
        for field in dataclasses.fields(PlannedRoutes)[1:]:
            assert not getattr(routes, field.name)[row, counts[row] :].any(), field.name


def test_features_of_one_route_worked_out_by_hand() -> None:
    tasks = RouteTasks(
        place_m=np.array([[[0, 0], [300, 400], [300, 1400]]], np.int32),
        ready_s=np.array([[250]], np.int32),
        due_s=np.array([[1200]], np.int32),
        pickup_service_s=np.array([[60]], np.int32),
        delivery_service_s=np.array([[120]], np.int32),
        load=np.array([[2]], np.int32),
        on_board=np.array([[False]]),
        is_new=np.array([[True]]),
    )
    codes = np.array([[1, 2, 0, 0]], np.int32)
    count = np.array([2], np.int32)
    routes = walk(codes, count, tasks, legs_by_place(codes, count, tasks.place_m, 1000, np.array([300])))
    inputs = features_from_plan(routes, context_of(1))
    named = [dict(zip(STOPS, stop.tolist(), strict=True)) for stop in inputs.stops[0]]
    # 500 m at 5 m/s, 150 s of waiting, 60 s in the shop, then 1000 m.
    assert named[0] == pytest.approx(
        {
            "leg_m": 500, "leg_s": 100, "plan_arrival_min": 100 / 60, "wait_before_min": 0, "slack_min": 1100 / 60,
            "ready_gap_min": -2.5, "load": 2, "position": 1, "is_new": 1, "dx_m": 300, "dy_m": 400, "distance_m": 500,
            "remaining": 1, "service_before_min": 0,
        }
    )  # fmt: skip
    assert named[1] == pytest.approx(
        {
            "leg_m": 1000, "leg_s": 200, "plan_arrival_min": 510 / 60, "wait_before_min": 2.5, "slack_min": 690 / 60,
            "ready_gap_min": 0, "load": 0, "position": 2, "is_new": 1, "dx_m": 300, "dy_m": 1400, "distance_m": 1500,
            "remaining": 0, "service_before_min": 1,
        }
    )  # fmt: skip
    assert inputs.mask.tolist() == [[1, 1, 0, 0]]
    assert inputs.stop_type.tolist() == [[PICKUP, DELIVERY, 0, 0]]
    assert not inputs.stops[0, 2:].any()
    dense = dict(zip(DENSE, inputs.dense[0].tolist(), strict=True))
    assert dense["plan_finish_min"] == pytest.approx(510 / 60)
    assert dense["plan_distance_m"] == 1500


def test_the_three_parts_of_a_step_add_up_to_the_plan() -> None:
    inputs = rounds.simulate(rounds.make_city(), 200, seed=9).inputs
    column = {name: index for index, name in enumerate(STOPS)}
    step = inputs.stops[:, :, column["leg_s"]] / 60 + inputs.stops[:, :, column["wait_before_min"]]
    step = step + inputs.stops[:, :, column["service_before_min"]]
    planned = np.cumsum(step, axis=1)
    real = inputs.mask > 0
    assert np.abs(planned - inputs.stops[:, :, column["plan_arrival_min"]])[real].max() < 1e-3


def test_every_named_column_is_filled_in_the_documented_order() -> None:
    context = context_of(3)
    none = np.zeros((3, 0), np.int32)
    routes = PlannedRoutes(np.zeros(3, np.int32), *([none] * (len(dataclasses.fields(PlannedRoutes)) - 1)))
    inputs = features_from_plan(routes, context)
    assert inputs.ids.shape == (3, len(IDS))
    assert len(IDS) == len(ID_BUCKETS)
    for name in set(IDS) - {"half_hour_of_week"}:
        assert inputs.ids[:, IDS.index(name)].tolist() == getattr(context, name).tolist(), name
    for name in set(DENSE) - {"hour_sin", "hour_cos", "plan_finish_min", "plan_distance_m"}:
        assert inputs.dense[:, DENSE.index(name)].tolist() == getattr(context, name).tolist(), name
    assert inputs.ids[:, IDS.index("half_hour_of_week")].tolist() == [1, 1, 1]  # minutes 40 to 42
    assert inputs.stops.shape == (3, 0, len(STOPS))


def test_grid_cells_are_unique_in_a_city_and_defined_everywhere() -> None:
    x, y = (side.ravel() for side in np.meshgrid(np.arange(128) * 250, np.arange(64) * 250))
    cells = grid_cell(x, y)
    assert len(np.unique(cells)) == 8192
    edge = np.array([-(2**31), 2**31 - 1, -1], np.int32)
    assert ((grid_cell(edge, edge) >= 0) & (grid_cell(edge, edge) < 8192)).all()
    assert grid_cell(x[:1], y[:1])[0] == grid_cell(x[:1] + 249, y[:1] + 249)[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["dense", "stops", "mask"])
def test_a_row_that_is_not_finite_is_named(name: str, value: float) -> None:
    inputs = rounds.simulate(rounds.make_city(), 4, seed=9).inputs
    check_finite(inputs)
    tensor = getattr(inputs, name).copy()
    tensor[2].flat[-1] = value
    with pytest.raises(NotFinite, match=f"{name} of etr .* row 2"):
        check_finite(dataclasses.replace(inputs, **{name: tensor}))


def test_equal_seeds_give_equal_rounds_and_other_seeds_do_not() -> None:
    city = rounds.make_city()
    first, again, other = (rounds.simulate(city, 50, seed) for seed in (4, 4, 5))
    assert np.array_equal(first.true_min, again.true_min)
    assert np.array_equal(first.inputs.stops, again.inputs.stops)
    assert not np.array_equal(first.true_min, other.true_min)


def test_simulated_routes_pick_up_before_they_deliver_and_the_truth_never_goes_back() -> None:
    test = rounds.simulate(rounds.make_city(), 300, seed=6)
    load = test.inputs.stops[:, :, STOPS.index("load")]
    assert (load >= 0).all()
    last = test.inputs.mask.sum(axis=1).astype(int) - 1
    assert not load[np.arange(300), last].any()
    assert (np.diff(test.true_min, axis=1) >= 0).all()
    assert (test.is_delivery.sum(axis=1) >= 1).all()
