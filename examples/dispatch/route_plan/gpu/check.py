"""Hold the kernels that were compiled here to the CPU's answers before they serve: once for each build on a machine.

Compilers err: a build was seen whose search missed the only route of one task in five hundred (docs/gpu.md). What a new
CUDA or CuPy makes of the same text is therefore compared on seeded tasks, and a mark on disk remembers that it was
right. It never compares requests. Next: `cuda.py`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from examples.dispatch.route_plan.contract import Answer, Batch, Options
from examples.dispatch.route_plan.gpu.solve import Engine, solve_on
from examples.dispatch.route_plan.gpu.source import program
from examples.dispatch.route_plan.layout import COST_WEIGHT_MAX, INT32_MAX, Order, Pair, Rider, Solver
from examples.dispatch.route_plan.solve import solve_batch

SIDE_M = 6000
TASKS = 2000  # of each kind; the worst build seen that was wrong at all erred once in 470
KINDS = (
    Options(starts=8),
    Options(starts=8, metre_cost=COST_WEIGHT_MAX, late_cost=COST_WEIGHT_MAX),
    Options(starts=8, hard_tw=True),
    Options(solver=Solver.TWO_STAGE, starts=32),
    Options(solver=Solver.INSERT, starts=8),
)


class WrongBuild(RuntimeError):
    """The kernels compiled on this machine do not give the CPU's answers; the text says what to do."""


def check_build(engine: Engine, build: str, marks: str, tasks: int = TASKS) -> bool:
    """Compare seeded tasks of every kind, unless a mark in the folder `marks` says that this build was right.

    `build` names compiler and card. Returns whether it compared; raises WrongBuild where an answer differs. With marks
    "" it compares each time.
    """
    digest = hashlib.sha256(f"{build} {program()}".encode()).hexdigest()[:16]
    mark = Path(marks) / f"gpu-{digest}.right" if marks else None
    if mark is not None and mark.exists():
        return False
    for number, options in enumerate(KINDS):
        batch = random_tasks(Mix(tasks, 1, 6, new=2, seed=number), options)
        wrong = different(solve_on(engine, batch), solve_batch(batch))
        if wrong:
            raise WrongBuild(
                f"route_plan's kernels, compiled by {build}, plan {max(wrong.values())} of {tasks} tasks wrongly:"
                ' set the model\'s parameter device to "cpu", or install another release of CuPy.'
            )
    if mark is not None:
        mark.touch()
    return True


@dataclass(frozen=True, slots=True)
class Mix:
    """What random tasks hold: orders in hand from least to most, new orders from none to `new`."""

    tasks: int
    least: int
    most: int
    new: int = 1
    on_board: float = 0.3  # share of the orders in hand that are picked up
    capacity: int = 12
    seed: int = 1


def random_tasks(mix: Mix, options: Options) -> Batch:
    """Draw one rider a task in a square of 6 km, with soft due times, tight capacity, some end stops."""
    rng = np.random.default_rng(mix.seed)
    count = mix.tasks
    in_hand = rng.integers(mix.least, mix.most + 1, count)
    fresh = rng.integers(0, mix.new + 1, (count,)) if mix.new else np.zeros(count, np.int64)
    total = int(in_hand.sum() + fresh.sum())
    riders = np.zeros((count, len(Rider)), np.int32)
    riders[:, Rider.ID] = rng.permutation(count)
    riders[:, [Rider.X, Rider.Y, Rider.END_X, Rider.END_Y]] = rng.integers(0, SIDE_M, (count, 4))
    riders[:, Rider.START] = rng.integers(0, 600, count)
    riders[:, Rider.CAPACITY] = rng.integers(mix.capacity // 2, mix.capacity + 1, count)
    riders[:, Rider.SPEED] = rng.choice((200, 320), count)
    riders[:, Rider.HAS_END] = rng.random(count) < 0.2
    riders[:, Rider.END_DUE] = INT32_MAX
    orders = np.zeros((total, len(Order)), np.int32)
    orders[:, : Order.DELIVERY_Y + 1] = rng.integers(0, SIDE_M, (total, 4))
    orders[:, Order.READY] = rng.integers(0, 1500, total)
    orders[:, Order.DUE] = orders[:, Order.READY] + rng.integers(900, 3000, total)
    orders[:, [Order.PICKUP_S, Order.DELIVERY_S]] = rng.integers(0, 300, (total, 2))
    orders[:, Order.LOAD] = rng.integers(1, 3, total)
    orders[:, Order.WEIGHT] = rng.integers(0, 4, total)
    orders[:, Order.PICKUP_DUE] = INT32_MAX
    held = int(in_hand.sum())
    orders[:held, Order.ON_BOARD] = rng.random(held) < mix.on_board
    pairs = np.full((count, len(Pair)), -1, np.int32)
    pairs[:, Pair.RIDER] = np.arange(count)
    pairs[:, Pair.TASK] = rng.permutation(count)
    at = held + np.concatenate([[0], np.cumsum(fresh)[:-1]])
    pairs[:, Pair.FIRST] = np.where(fresh > 0, at, -1)
    pairs[:, Pair.SECOND] = np.where(fresh > 1, at + 1, -1)
    none = np.zeros(0, np.int32)
    return Batch(
        riders=riders,
        orders=orders,
        hand_start=np.concatenate([[0], np.cumsum(in_hand)]).astype(np.int32),
        hand=np.arange(held, dtype=np.int32),
        route_start=np.zeros(count + 1, np.int32),
        route=np.zeros(0, np.uint8),
        pairs=pairs,
        matrix_start=np.zeros(0, np.int64),
        seconds=none,
        metres=none,
        options=options.tensor(),
    )


def different(got: Answer, wanted: Answer) -> dict[str, int]:
    """How many pairs differ, by field; empty where the answers are equal."""
    counts = {}
    for name, array in wanted.tensors().items():
        unequal = (getattr(got, name) != array).reshape(len(array), -1).any(axis=1)
        if unequal.any():
            counts[name] = int(unequal.sum())
    return counts
