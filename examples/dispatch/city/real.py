"""Tasks and rounds made of real problems: Grubhub's couriers with each order taken out once, Li & Lim's vehicles.

Nothing is invented but the draw of tasks for a batch of the wished size. It reads no files.
Next: route_plan/contract.py.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from examples.dispatch.city.generate import apportion, area_shares
from examples.dispatch.city.rounds import Round
from examples.dispatch.data.grubhub import GrubhubOptimum, GrubhubProblem
from examples.dispatch.data.lilim import UNIT, LiLimProblem, VehicleRoute
from examples.dispatch.route_plan import Options, Solver
from examples.dispatch.route_plan.build import OrderRow, RiderRow, Task, build_batch
from examples.dispatch.route_plan.layout import INT32_MAX, ORDERS_MAX


def grubhub_task(problem: GrubhubProblem) -> Task:
    """Plan the whole problem: all its orders are in hand, the matrix counts as seconds and as metres."""
    orders = tuple(OrderRow() for _ in range(problem.orders))
    return Task(RiderRow(), orders, seconds=problem.travel, metres=problem.travel)


def removed_order_tasks(problems: Sequence[GrubhubProblem], optima: Sequence[GrubhubOptimum]) -> list[tuple[str, Task]]:
    """Take each order out of each optimal route once: (problem's name, task of putting it back).

    Task numbers count the tasks, rider numbers the problems.
    """
    by_name = {optimum.name: optimum for optimum in optima}
    tasks: list[tuple[str, Task]] = []
    for place, problem in enumerate(problems):
        route = by_name[problem.name].stops
        for removed in range(problem.orders):
            kept = [order for order in range(problem.orders) if order != removed]
            stops = [0, *(stop for order in (*kept, removed) for stop in (2 * order + 1, 2 * order + 2))]
            travel = problem.travel[np.ix_(stops, stops)]
            code = {stop: k for k, stop in enumerate(stops)}
            task = Task(
                RiderRow(number=place),
                tuple(OrderRow() for _ in kept),
                (OrderRow(),),
                tuple(code[stop] for stop in route if (stop - 1) // 2 != removed),
                len(tasks),
                travel,
                travel,
            )
            tasks.append((problem.name, task))
    return tasks


def lilim_task(problem: LiLimProblem, route: VehicleRoute, seed: int, new: int = 0) -> Task:
    """Plan one vehicle's round with its requests in a seeded order, the last `new` of them as new orders.

    Times and distances are x1000; the depot is start and end stop, and its due time binds.
    """
    pickups = sorted(site for site in route.sites if problem.sites[site].demand > 0)
    random.Random(seed).shuffle(pickups)  # noqa: S311 - a reproducible order, no secret
    orders = []
    for pickup in pickups:
        first, last = problem.sites[pickup], problem.sites[problem.sites[pickup].other]
        orders.append(
            OrderRow(
                ready=UNIT * first.ready,
                due=UNIT * last.due,
                pickup_s=UNIT * first.service,
                delivery_s=UNIT * last.service,
                load=first.demand,
                pickup_due=UNIT * first.due,
                delivery_ready=UNIT * last.ready,
            )
        )
    stops = [0, *(stop for pickup in pickups for stop in (pickup, problem.sites[pickup].other)), 0]
    travel = np.array([[problem.travel_milli(a, b) for b in stops] for a in stops], np.int32)
    depot = problem.sites[0]
    rider = RiderRow(number=seed, capacity=problem.capacity, end=(0, 0), end_due=min(UNIT * depot.due, INT32_MAX))
    kept = len(orders) - new
    return Task(rider, tuple(orders[:kept]), tuple(orders[kept:]), (), seed, travel, travel)


@dataclass(frozen=True, slots=True)
class RealPlan:
    """How large a round to draw from a data set's tasks: tiled if it has fewer, sampled if it has more."""

    pairs: int = 1190
    shards: int = 32
    seed: int = 0


def grubhub_round(
    problems: Sequence[GrubhubProblem],
    optima: Sequence[GrubhubOptimum],
    plan: RealPlan,
    options: Options | None = None,
) -> Round:
    """Make a round of putting orders back into Grubhub routes, a matrix per pair; default: cheapest insertion by
    metres.

    Raises ValueError where there are no problems.
    """
    tasks = [task for _, task in removed_order_tasks(problems, optima)]
    chosen = options or Options(solver=Solver.INSERT, late_cost=0, wait_cost=0)
    return _drawn_round("grubhub", tasks, plan, chosen)


def lilim_round(
    problems: Sequence[LiLimProblem], routes: Sequence[VehicleRoute], plan: RealPlan, options: Options | None = None
) -> Round:
    """Make a round of adding a request to Li & Lim vehicles under hard windows, a matrix per pair; default: two_stage.

    Vehicles with more requests than one task holds are left out. Raises ValueError where no vehicle is left.
    """
    by_name = {problem.name: problem for problem in problems}
    tasks = [
        lilim_task(by_name[route.instance], route, seed, new=1)
        for seed, route in enumerate(routes)
        if route.instance in by_name and len(route.sites) <= 2 * ORDERS_MAX
    ]
    chosen = options or Options(solver=Solver.TWO_STAGE, late_cost=0, wait_cost=0, hard_tw=True)
    return _drawn_round("lilim", tasks, plan, chosen)


def _drawn_round(name: str, tasks: Sequence[Task], plan: RealPlan, options: Options) -> Round:
    if not tasks or plan.pairs < 1 or plan.shards < 1:
        raise ValueError(f"a {name} round needs tasks, and at least one pair and one shard")
    rng = np.random.default_rng(plan.seed)
    whole, part = divmod(plan.pairs, len(tasks))
    drawn = np.concatenate([np.tile(np.arange(len(tasks)), whole), rng.choice(len(tasks), part, replace=False)])
    rng.shuffle(drawn)
    numbered = [
        replace(tasks[row], number=place, rider=replace(tasks[row].rider, number=place))
        for place, row in enumerate(drawn.tolist())
    ]
    sizes = apportion(plan.pairs, area_shares(plan.shards))
    shard_of = np.repeat(np.arange(plan.shards), sizes).astype(np.int32)
    return Round(f"{name}-{plan.seed}", build_batch(numbered, options), shard_of)
