"""route_plan's answer becomes etr's input: the walk must give the planner's own arrivals, to the second."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from examples.dispatch.etr.features import DELIVERY, DENSE, IDS, PICKUP, STOPS, check_finite
from examples.dispatch.etr.join import RoundFacts, inputs_of, routes_of
from examples.dispatch.etr.modelfile import shipped
from examples.dispatch.etr.serve import Session
from examples.dispatch.route_plan import Answer, Batch, Options, Pair, Rider, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import OrderRow, Task, build_batch
from tests.unit.examples.conftest import make_task


def solved(count: int, seed: int, hand_max: int = 4) -> tuple[list[Task], Batch, Answer]:
    rng = random.Random(seed)
    tasks = [make_task(rng, rng.randrange(hand_max + 1), rng.choice((1, 1, 2))) for _ in range(count)]
    batch = build_batch(tasks, Options(solver=Solver.INSERT, starts=4))
    return tasks, batch, solve_batch(batch)


def facts_of(batch: Batch) -> RoundFacts:
    riders, orders = len(batch.riders), len(batch.orders)

    def floats(count: int) -> np.ndarray:
        return np.linspace(1.0, 9.0, count).astype(np.float32)

    return RoundFacts(
        minute_of_week=3 * 1440 + 12 * 60,
        now_s=500,
        weather=2,
        rider_speed_m_per_min=floats(riders),
        rider_level=floats(riders),
        shop=np.arange(orders, dtype=np.int32),
        area=np.arange(orders, dtype=np.int32) // 10,
        placed_s=np.full(orders, 200, np.int32),
        prep_mean_min=floats(orders),
        prep_spread_min=floats(orders),
        riders_per_order=floats(orders),
        orders_waiting=floats(orders),
    )


def check_arrivals(batch: Batch, answer: Answer) -> int:
    """Compare each delivery of the walk with the planner's arrival; returns how many were compared."""
    routes = routes_of(batch, answer)
    compared = 0
    for pair in np.flatnonzero(answer.status == Status.OK):
        start = int(batch.riders[batch.pairs[pair, Pair.RIDER], Rider.START])
        for column, code in enumerate(answer.stops[pair, : routes.stop_count[pair]].tolist()):
            assert routes.stop_type[pair, column] == (PICKUP if code % 2 else DELIVERY)
            if code % 2 == 0:
                assert start + routes.arrive_s[pair, column] == answer.arrivals[pair, (code - 1) // 2]
                compared += 1
    return compared


def test_the_walk_gives_the_planners_arrivals() -> None:
    _tasks, batch, answer = solved(300, seed=1)
    assert check_arrivals(batch, answer) > 500


def test_the_walk_gives_the_planners_arrivals_from_matrices() -> None:
    tasks, _batch, _answer = solved(40, seed=2)
    rng = np.random.default_rng(3)
    with_matrices = []
    for task in tasks:
        places = 2 * (len(task.hand) + len(task.new)) + 1 + (task.rider.end is not None)
        seconds = rng.integers(1, 900, (places, places))
        with_matrices.append(dataclasses.replace(task, seconds=seconds, metres=3 * seconds))
    batch = build_batch(with_matrices, Options(solver=Solver.INSERT))
    answer = solve_batch(batch)
    assert check_arrivals(batch, answer) > 60
    routes = routes_of(batch, answer)
    assert np.array_equal(routes.leg_m, 3 * routes.leg_s)


def test_a_route_of_more_than_sixteen_stops_gets_thirty_two_columns() -> None:
    rng = random.Random(4)
    easy = [
        dataclasses.replace(task, rider=dataclasses.replace(task.rider, capacity=99))
        for task in (make_task(rng, 11, 1),)
    ]
    batch = build_batch(easy, Options(solver=Solver.INSERT))
    answer = solve_batch(batch)
    assert routes_of(batch, answer).leg_m.shape == (1, 32)
    assert check_arrivals(batch, answer) == 12


def test_a_pair_without_a_route_has_no_stops() -> None:
    _tasks, batch, answer = solved(20, seed=5)
    pairs = batch.pairs.copy()
    pairs[3, Pair.RIDER], pairs[4, Pair.FIRST], pairs[5, Pair.RIDER] = 10**6, 10**6, -1
    broken = dataclasses.replace(batch, pairs=pairs)
    answer = solve_batch(broken)
    assert (answer.status[3:6] == Status.BAD_INDEX).all()
    inputs = inputs_of(broken, answer, facts_of(broken))
    check_finite(inputs)
    assert not inputs.mask[3:6].any()
    assert not Session(shipped("etr"), threads=1).etr(inputs)[3:6].any()


def test_tensors_hold_what_the_request_and_the_facts_say() -> None:
    tasks, batch, answer = solved(60, seed=6)
    facts = facts_of(batch)
    inputs = inputs_of(batch, answer, facts)
    check_finite(inputs)
    dense = {name: inputs.dense[:, column] for column, name in enumerate(DENSE)}
    ids = {name: inputs.ids[:, column] for column, name in enumerate(IDS)}
    stops = {name: inputs.stops[:, :, column] for column, name in enumerate(STOPS)}
    for row, task in enumerate(tasks):
        new: OrderRow = task.new[0]
        number = int(batch.pairs[row, Pair.FIRST])
        assert ids["rider"][row] == task.rider.number
        assert ids["shop"][row] == number
        assert ids["area"][row] == number // 10
        assert dense["orders_in_hand"][row] == len(task.hand)
        assert dense["to_due_min"][row] == pytest.approx((new.due - 500) / 60)
        assert dense["since_placed_min"][row] == 5.0
        assert dense["to_pickup_m"][row] == pytest.approx(
            np.hypot(new.pickup[0] - task.rider.x, new.pickup[1] - task.rider.y), rel=1e-6
        )
        if answer.status[row] == Status.OK:
            assert stops["is_new"][row].sum() == 2 * len(task.new)
            assert stops["distance_m"][row].max() == dense["plan_distance_m"][row]
            assert dense["detour_ratio"][row] >= 1.0 or task.hand
    assert (ids["half_hour_of_week"] == 3 * 48 + 24).all()


def test_an_empty_request_gives_empty_tensors() -> None:
    _tasks, batch, _answer = solved(2, seed=7)
    none = dataclasses.replace(batch, pairs=batch.pairs[:0])
    inputs = inputs_of(none, solve_batch(none), facts_of(none))
    assert inputs.stops.shape == (0, 16, 14)
    assert Session(shipped("etr"), threads=1).etr(inputs).shape == (0, 16)
