"""Cut-offs must not change answers: insertion and moves against plain Python, where legs and windows are unkind."""

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from examples.dispatch.route_plan import Options, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import Task, build_batch
from tests.unit.examples.conftest import make_task
from tests.unit.examples.route_reference import Sequence, World, every_place


def unkind_task(rng: random.Random, hand: int) -> Task:
    """A task whose matrix is noise: no triangle inequality, no symmetry, and seconds unrelated to metres."""
    task = make_task(rng, hand, 1)
    size = 2 * (hand + 1) + 1 + (task.rider.end is not None)
    noise = np.random.default_rng(rng.randrange(2**32))
    legs = noise.integers(0, 2000, (2, size, size)).astype(np.int32)
    return replace(task, seconds=legs[0], metres=legs[1])


def hand_world(task: Task, options: Options) -> World:
    """The world of the orders in hand alone; their stops come first in the whole matrix, the end stop last."""
    world, whole = World(replace(task, new=(), seconds=None, metres=None), options), World(task, options)
    if whole.seconds is not None and whole.metres is not None:
        kept = [*range(2 * len(task.hand) + 1), *([len(whole.seconds) - 1] if world.has_end else [])]
        world.seconds = [[whole.seconds[a][b] for b in kept] for a in kept]
        world.metres = [[whole.metres[a][b] for b in kept] for a in kept]
    return world


def some_route(rng: random.Random, task: Task, options: Options) -> Sequence | None:
    """A feasible route of the orders in hand, or None where a few draws find none."""
    world = hand_world(task, options)
    for _ in range(30):
        codes = [2 * i + 1 + k for i, order in enumerate(task.hand) for k in range(order.on_board, 2)]
        rng.shuffle(codes)
        # The first stop drawn of an order is its pickup, the second its delivery.
        route: list[int] = []
        for code in codes:
            pickup = (code - 1) // 2 * 2 + 1
            fresh = pickup not in route and not task.hand[(code - 1) // 2].on_board
            route.append(pickup if fresh else pickup + 1)
        if world.evaluate(tuple(route)).feasible:
            return tuple(route)
    return None


@pytest.mark.parametrize("unkind", [False, True], ids=["city", "noise"])
@pytest.mark.parametrize(
    ("hard", "finish", "wait"), [(False, 0, 0), (False, 0, 2), (False, 5, 30), (True, 0, 0), (True, 3, 2)]
)
def test_insertion_equals_trying_every_place(unkind: bool, hard: bool, finish: int, wait: int) -> None:
    rng = random.Random(f"{unkind} {hard} {finish}")
    options = Options(solver=Solver.INSERT, hard_tw=hard, finish_cost=finish, wait_cost=wait, late_cost=3)
    tasks = []
    while len(tasks) < 60:
        hand = rng.randrange(7)
        task = unkind_task(rng, hand) if unkind else make_task(rng, hand, 1)
        if hard:  # windows that some routes can keep
            wide = tuple(replace(order, due=order.due + rng.randrange(9000)) for order in task.hand)
            task = replace(task, hand=wide)
        route = some_route(rng, task, options)
        if route is not None:
            tasks.append(replace(task, route=route))
    answer = solve_batch(build_batch(tasks, options))
    for row, task in enumerate(tasks):
        best = every_place(World(task, options), task.route, len(task.hand))
        if best is None:
            assert answer.status[row] == Status.INFEASIBLE
            continue
        assert answer.status[row] == Status.OK
        assert (int(answer.cost[row]), tuple(int(stop) for stop in answer.stops[row] if stop != 255)) == best


def neighbours(route: Sequence) -> Iterator[Sequence]:
    """Every route one move away: an order elsewhere, a stop elsewhere, a piece reversed."""
    for order in {(stop - 1) // 2 for stop in route}:
        rest = tuple(stop for stop in route if (stop - 1) // 2 != order)
        for i in range(len(rest) + 1):
            for j in range(i, len(rest) + 1):
                pickup = (2 * order + 1,) if 2 * order + 1 in route else ()
                yield (*rest[:i], *pickup, *rest[i:j], 2 * order + 2, *rest[j:])
    for at, stop in enumerate(route):
        rest = (*route[:at], *route[at + 1 :])
        for to in range(len(route)):
            yield (*rest[:to], stop, *rest[to:])
    for low in range(len(route)):
        for high in range(low + 2, len(route) + 1):
            yield (*route[:low], *reversed(route[low:high]), *route[high:])


def keeps_precedence(route: Sequence) -> bool:
    return all(stop % 2 == 1 or stop - 1 not in route[at:] for at, stop in enumerate(route))


@pytest.mark.parametrize("unkind", [False, True], ids=["city", "noise"])
@pytest.mark.parametrize("hard", [False, True], ids=["soft", "hard"])
def test_no_move_betters_a_two_stage_route(unkind: bool, hard: bool) -> None:
    rng = random.Random(31)
    options = Options(solver=Solver.TWO_STAGE, starts=3, hard_tw=hard, finish_cost=1)
    tasks = [unkind_task(rng, 5) if unkind else make_task(rng, rng.randrange(2, 7), 1) for _ in range(12)]
    if hard:  # windows that most routes can keep
        wide = [tuple(replace(order, due=order.due + 5000) for order in task.hand) for task in tasks]
        tasks = [replace(task, hand=hand) for task, hand in zip(tasks, wide, strict=True)]
    answer = solve_batch(build_batch(tasks, options))
    checked = 0
    for row, task in enumerate(tasks):
        if answer.status[row] != Status.OK:
            continue
        checked += 1
        world = World(task, options)
        route = tuple(int(stop) for stop in answer.stops[row] if stop != 255)
        for other in neighbours(route):
            if keeps_precedence(other):
                outcome = world.evaluate(other)
                assert not outcome.feasible or outcome.cost >= answer.cost[row]
    assert checked >= 6
