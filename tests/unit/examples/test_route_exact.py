"""`exact` against brute force in plain Python, and against the proved optima of real problems."""

import random
from pathlib import Path

import numpy as np
import pytest

from examples.dispatch.data.dumitrescu import load_tour
from examples.dispatch.data.grubhub import load_optima, load_problems
from examples.dispatch.route_plan import Answer, Options, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import OrderRow, RiderRow, Task, build_batch
from tests.unit.examples.conftest import make_task
from tests.unit.examples.route_reference import World, brute_force

METRES_ONLY = Options(solver=Solver.EXACT, late_cost=0, wait_cost=0)
BY_SEARCH = Options(solver=Solver.EXACT, late_cost=0, wait_cost=0, subset_orders_max=0)


def stops_of(answer: Answer, row: int) -> tuple[int, ...]:
    return tuple(int(stop) for stop in answer.stops[row] if stop != 255)


def check_against_brute_force(tasks: list[Task], options: Options) -> None:
    answer = solve_batch(build_batch(tasks, options))
    for row, task in enumerate(tasks):
        world = World(task, options)
        best = brute_force(world)
        if best is None:
            assert answer.status[row] == Status.INFEASIBLE
            continue
        assert answer.status[row] == Status.OK
        assert answer.proved[row] == 1
        assert (int(answer.cost[row]), stops_of(answer, row)) == best
        outcome = world.evaluate(best[1])
        assert tuple(answer.arrivals[row][: len(world.orders)]) == outcome.arrivals
        assert answer.late_sum[row] == sum(outcome.late)
        assert answer.late_max[row] == max(outcome.late)


def whole_problems(data: Path, least: int, most: int) -> tuple[list[str], list[Task]]:
    problems = [p for p in load_problems(data / "tsppd_grubhub") if least <= p.orders <= most]
    tasks = [
        Task(RiderRow(), tuple(OrderRow() for _ in range(p.orders)), seconds=p.travel, metres=p.travel)
        for p in problems
    ]
    return [p.name for p in problems], tasks


def tour_task(path: Path) -> Task:
    tour = load_tour(path)
    return Task(
        RiderRow(end=(0, 0)),
        tuple(OrderRow() for _ in range(tour.orders)),
        seconds=tour.travel,
        metres=tour.travel,
    )


@pytest.mark.parametrize("options", [METRES_ONLY, BY_SEARCH], ids=["subsets", "search"])
def test_grubhub_up_to_four_orders_equals_brute_force(data: Path, options: Options) -> None:
    check_against_brute_force(whole_problems(data, 2, 4)[1], options)


def test_one_closed_tour_of_five_orders_equals_brute_force(data: Path) -> None:
    check_against_brute_force([tour_task(data / "pdtsp_dumitrescu" / "prob5a.txt")], METRES_ONLY)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_orders_equal_brute_force(data: Path) -> None:
    tours = [tour_task(data / "pdtsp_dumitrescu" / f"prob5{letter}.txt") for letter in "abc"]
    for options in (METRES_ONLY, BY_SEARCH):
        check_against_brute_force(whole_problems(data, 5, 5)[1], options)
        check_against_brute_force(tours, options)


def soft_late_tasks(count: int, orders_max: int, seed: int) -> list[Task]:
    rng = random.Random(seed)
    return [make_task(rng, rng.randrange(orders_max), 1) for _ in range(count)]


@pytest.mark.parametrize("finish_cost", [0, 3])
def test_soft_late_cases_equal_brute_force(finish_cost: int) -> None:
    check_against_brute_force(soft_late_tasks(60, 4, 7), Options(solver=Solver.EXACT, finish_cost=finish_cost))


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_five_hundred_soft_late_cases_equal_brute_force() -> None:
    check_against_brute_force(soft_late_tasks(500, 5, 11), Options(solver=Solver.EXACT))


def test_hard_windows_equal_brute_force() -> None:
    check_against_brute_force(soft_late_tasks(60, 4, 13), Options(solver=Solver.EXACT, hard_tw=True))


def test_weightless_metres_still_give_the_smallest_sequence() -> None:
    tasks = soft_late_tasks(10, 3, 5)
    check_against_brute_force(tasks, Options(solver=Solver.EXACT, metre_cost=0, late_cost=0, wait_cost=0))


def check_optima(data: Path, orders_max: int) -> None:
    optima = {optimum.name: optimum for optimum in load_optima(data / "tsppd_grubhub" / "optimal.csv")}
    names, tasks = whole_problems(data, 2, orders_max)
    answer = solve_batch(
        build_batch(tasks, Options(solver=Solver.EXACT, late_cost=0, wait_cost=0, subset_orders_max=orders_max))
    )
    assert answer.cost.tolist() == [optima[name].cost for name in names]
    assert answer.proved.all()
    assert (answer.status == Status.OK).all()


def test_proved_optima_up_to_ten_orders(data: Path) -> None:
    check_optima(data, 10)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_proved_optima_up_to_fifteen_orders(data: Path) -> None:
    check_optima(data, 15)


def test_grubhub_09_4_is_the_published_7078(data: Path) -> None:
    names, tasks = whole_problems(data, 9, 9)
    answer = solve_batch(build_batch([tasks[names.index("grubhub-09-4")]], METRES_ONLY))
    assert answer.cost.tolist() == [7078]


def test_a_search_cut_short_is_not_called_proved() -> None:
    rng = random.Random(3)
    task = make_task(rng, 6, 1)
    answer = solve_batch(build_batch([task], Options(solver=Solver.EXACT, nodes_max=10)))
    assert answer.status.tolist() == [Status.OK]
    assert answer.proved.tolist() == [0]
    assert np.unique(answer.stops[0][answer.stops[0] != 255]).size == sum(
        1 if o.on_board else 2 for o in (*task.hand, *task.new)
    )
