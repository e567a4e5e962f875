"""Measure the planner on a GPU: `python -m examples.dispatch.route_plan.gpu.bench [--repeat N]`.

Kernel times are between events on the engine's stream; round times are a caller's, from tables in memory to the answer
in memory, packing and both transfers with them. Each is the median of N runs after one that is not counted. It prints
one JSON object. The same functions serve the tests in tests/hw. Next: nothing, this is the end of the folder.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.route_plan import (
    Answer,
    Batch,
    Option,
    Options,
    Order,
    Pair,
    Rider,
    Solver,
    solve_batch,
    warm_up,
)
from examples.dispatch.route_plan.gpu import geometry, packing
from examples.dispatch.route_plan.gpu.cuda import CudaEngine, Settings, open_engine
from examples.dispatch.route_plan.gpu.solve import solve_on
from examples.dispatch.route_plan.gpu.source import Flag
from examples.dispatch.route_plan.layout import INT32_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

SIDE_M = 6000


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


def solve_on_cores(batch: Batch, cores: int) -> Answer:
    """The CPU's answer, pairs shared out over threads (the kernels let go of the interpreter lock)."""
    parts = np.array_split(np.arange(len(batch.pairs)), 8 * cores)

    def part(rows: np.ndarray) -> Answer:
        starts = batch.matrix_start
        if len(starts):
            starts = starts[rows[0] : rows[-1] + 2] if len(rows) else starts[:1]
        return solve_batch(replace(batch, pairs=batch.pairs[rows], matrix_start=starts))

    with ThreadPoolExecutor(cores) as pool:
        answers = list(pool.map(part, parts))
    return Answer(*(np.concatenate([getattr(a, name) for a in answers]) for name in answers[0].tensors()))


def different(got: Answer, wanted: Answer) -> dict[str, int]:
    """How many pairs differ, by field; empty where the answers are equal."""
    counts = {}
    for name, array in wanted.tensors().items():
        unequal = (getattr(got, name) != array).reshape(len(array), -1).any(axis=1)
        if unequal.any():
            counts[name] = int(unequal.sum())
    return counts


def median_s(call: Callable[[], object], repeat: int) -> float:
    """Wall time of one call, the median."""
    call()
    spent = []
    for _ in range(repeat):
        began = time.perf_counter()
        call()
        spent.append(time.perf_counter() - began)
    return statistics.median(spent)


def kernel_ms(engine: CudaEngine, batch: Batch, repeat: int) -> tuple[float, float]:
    """Time of the kernels for riders' hands and of those for pairs, medians, without transfers."""
    import cupy

    rows = np.arange(len(batch.pairs), dtype=np.int32)
    riders = geometry.riders_of(batch, rows)
    exact = geometry.exact_orders(batch)
    worth = geometry.HARD if batch.options[Option.HARD_TW] else geometry.NARROW
    hands = geometry.work_for(riders, geometry.orders_in_hand(batch)[riders], worth, Flag.HANDS, exact)
    pairs = geometry.work_for(rows, geometry.orders_of_pairs(batch), worth, geometry.pair_flags(batch), exact)
    nobody = geometry.Work(rows[:0], ())
    engine.load(packing.plan_of(batch), batch)
    taken = []
    for _ in range(repeat + 1):
        marks = [cupy.cuda.Event() for _ in range(4)]
        for work, begin, end in (((hands, nobody), 0, 1), ((nobody, pairs), 2, 3)):
            marks[begin].record(engine.stream)
            engine.launch_all(worth, *work)
            marks[end].record(engine.stream)
        engine.stream.synchronize()
        taken.append([cupy.cuda.get_elapsed_time(marks[k], marks[k + 1]) for k in (0, 2)])
    by_kind = list(zip(*taken[1:], strict=True))
    return statistics.median(by_kind[0]), statistics.median(by_kind[1])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(prog="python -m examples.dispatch.route_plan.gpu.bench", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="runs per figure (default 5)")
    parser.add_argument("--registers", type=int, default=Settings().registers_max, help="of a thread, at most")
    parser.add_argument("--warps", type=int, default=0, help="of a block (default: as geometry.py says)")
    given = parser.parse_args()
    warm_up()
    settings = Settings(given.registers, given.warps)
    began = time.perf_counter()
    engine = open_engine(settings)
    solve_on(engine, random_tasks(Mix(10, 1, 3), Options()))
    ready_s = time.perf_counter() - began
    print(json.dumps({"settings": asdict(settings), "ready_s": ready_s, **measure(engine, given.repeat)}, indent=1))


def measure(engine: CudaEngine, repeat: int) -> dict[str, float]:
    """All figures, by name; units last."""
    ten = random_tasks(Mix(6400, 10, 10, new=0), Options(solver=Solver.TWO_STAGE))
    five = random_tasks(Mix(30_000, 5, 5, new=0, on_board=0.0), Options(solver=Solver.EXACT))
    figures = {
        "two_stage_10_orders_6400_tasks_kernel_ms": kernel_ms(engine, ten, repeat)[0],
        "exact_5_orders_30000_tasks_kernel_ms": kernel_ms(engine, five, repeat)[0],
    }
    for name, solver in (("auto", Solver.AUTO), ("two_stage", Solver.TWO_STAGE)):
        batch = city_round(CityPlan(options=Options(solver=solver))).batch
        hands_ms, pairs_ms = kernel_ms(engine, batch, repeat)
        figures[f"round_{name}_hands_kernel_ms"] = hands_ms
        figures[f"round_{name}_pairs_kernel_ms"] = pairs_ms
        figures[f"round_{name}_pairs"] = len(batch.pairs)
        figures[f"round_{name}_whole_ms"] = 1e3 * median_s(partial(solve_on, engine, batch), repeat)
    wide = city_round(CityPlan(near=2585, options=Options(solver=Solver.INSERT))).batch
    hands_ms, pairs_ms = kernel_ms(engine, wide, repeat)
    whole_s = median_s(lambda: solve_on(engine, wide), repeat)
    figures["insert_pairs"] = len(wide.pairs)
    figures["insert_pairs_kernel_ms"] = pairs_ms
    figures["insert_whole_ms"] = 1e3 * whole_s
    figures["insert_pairs_per_s"] = len(wide.pairs) / whole_s
    return figures


if __name__ == "__main__":
    main()
