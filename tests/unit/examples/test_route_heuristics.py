"""`two_stage` and `insert` on real problems: how near the optimum, and equal to trying everything in plain Python."""

from pathlib import Path

import numpy as np

from examples.dispatch.city.real import grubhub_task, lilim_task, removed_order_tasks
from examples.dispatch.data.grubhub import load_optima, load_problems
from examples.dispatch.data.lilim import load_routes
from examples.dispatch.route_plan import Options, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import build_batch
from tests.unit.examples.route_reference import World, every_place, sequences


def gaps(data: Path, starts: int) -> np.ndarray:
    optima = {optimum.name: optimum.cost for optimum in load_optima(data / "tsppd_grubhub" / "optimal.csv")}
    problems = load_problems(data / "tsppd_grubhub")
    options = Options(solver=Solver.TWO_STAGE, starts=starts, late_cost=0, wait_cost=0)
    answer = solve_batch(build_batch([grubhub_task(problem) for problem in problems], options))
    assert (answer.status == Status.OK).all()
    best = np.array([optima[problem.name] for problem in problems])
    return 100.0 * (answer.cost - best) / best


def test_thirty_two_starts_are_near_the_optimum(data: Path) -> None:
    gap = gaps(data, 32)
    assert gap.min() >= 0
    assert gap.mean() <= 0.15
    assert gap.max() <= 2.0
    assert (gap == 0).sum() >= 77


def test_four_starts_are_within_a_percent_on_average(data: Path) -> None:
    gap = gaps(data, 4)
    assert gap.min() >= 0
    assert gap.mean() <= 1.0


def test_insertion_equals_trying_every_place(data: Path) -> None:
    folder = data / "tsppd_grubhub"
    optima = {optimum.name: optimum for optimum in load_optima(folder / "optimal.csv")}
    removed = removed_order_tasks(load_problems(folder), tuple(optima.values()))
    options = Options(solver=Solver.INSERT, late_cost=0, wait_cost=0)
    answer = solve_batch(build_batch([task for _, task in removed], options))
    for row, (name, task) in enumerate(removed):
        world = World(task, options)
        best = every_place(world, task.route, len(task.hand))
        assert best is not None
        assert (int(answer.cost[row]), tuple(int(stop) for stop in answer.stops[row] if stop != 255)) == best
        assert answer.marginal[row] == best[0] - World(task, options).evaluate(task.route).cost
        assert answer.cost[row] >= optima[name].cost


def test_lilim_routes_are_feasible_and_no_longer(data: Path) -> None:
    from examples.dispatch.data.lilim import load_problem

    folder = data / "pdptw_lilim"
    routes = load_routes(folder / "routes_100_vroom.json")
    problems = {route.instance: load_problem(folder / "li_lim_100" / f"{route.instance}.txt") for route in routes}
    tasks = [lilim_task(problems[route.instance], route, seed=row) for row, route in enumerate(routes)]
    fits = [row for row, task in enumerate(tasks) if len(task.hand) <= 16]
    assert len(fits) >= 0.9 * len(routes)
    exact = [row for row in fits if len(tasks[row].hand) <= 6]
    longer = [row for row in fits if len(tasks[row].hand) > 6]
    for rows, solver, slack in ((exact, Solver.EXACT, 1.0), (longer, Solver.TWO_STAGE, 1.01)):
        options = Options(solver=solver, late_cost=0, wait_cost=0, hard_tw=True)
        answer = solve_batch(build_batch([tasks[row] for row in rows], options))
        bad = [
            (
                routes[row].instance,
                len(tasks[row].hand),
                int(answer.status[k]),
                int(answer.cost[k]) / routes[row].distance_milli,
            )
            for k, row in enumerate(rows)
            if answer.status[k] != Status.OK or answer.cost[k] > slack * routes[row].distance_milli
        ]
        assert not bad
        for k, row in enumerate(rows):
            sequence = tuple(int(stop) for stop in answer.stops[k] if stop != 255)
            outcome = World(tasks[row], options).evaluate(sequence)
            assert outcome.feasible
            assert outcome.cost == answer.cost[k]


def test_two_new_orders_take_the_better_turn() -> None:
    import random

    from tests.unit.examples.conftest import make_task

    rng = random.Random(17)
    options = Options(solver=Solver.INSERT)
    checked = 0
    for _ in range(40):
        task = make_task(rng, 2, 2)
        world = World(task, options)
        route = next(sequences(list(task.hand)))
        if not World(type(task)(task.rider, task.hand), options).evaluate(route).feasible:
            continue
        answer = solve_batch(build_batch([type(task)(task.rider, task.hand, task.new, route, task.number)], options))
        found = []
        for first, second in ((2, 3), (3, 2)):
            once = partial_best(world, route, first)
            twice = partial_best(world, once, second) if once else None
            if twice:
                found.append((world_cost(world, twice), twice))
        if not found:
            assert answer.status[0] == Status.INFEASIBLE
            continue
        checked += 1
        assert (int(answer.cost[0]), tuple(int(stop) for stop in answer.stops[0] if stop != 255)) == min(found)
    assert checked > 20


def world_cost(world: World, sequence: tuple[int, ...]) -> int:
    return world.evaluate(sequence).cost


def partial_best(world: World, route: tuple[int, ...], order: int) -> tuple[int, ...] | None:
    best = every_place(world, route, order)
    return best[1] if best else None
