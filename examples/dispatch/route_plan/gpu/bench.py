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
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.route_plan import (
    Answer,
    Batch,
    Option,
    Options,
    Solver,
    solve_batch,
    warm_up,
)
from examples.dispatch.route_plan.gpu import geometry, packing
from examples.dispatch.route_plan.gpu.check import Mix, random_tasks
from examples.dispatch.route_plan.gpu.cuda import CudaEngine, Settings, open_engine
from examples.dispatch.route_plan.gpu.solve import solve_on
from examples.dispatch.route_plan.gpu.source import Flag

if TYPE_CHECKING:
    from collections.abc import Callable


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
