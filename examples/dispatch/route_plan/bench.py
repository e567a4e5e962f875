"""Measure the planner on one core: `python -m examples.dispatch.route_plan.bench [--repeat N]`.

Rates are pairs or tasks per second of CPU time of the calling thread, the median of N runs after one that is not
counted; the gap table is over the Grubhub files of the data folder. The first line, one order into an empty route, is
mostly the cost of reading a pair and writing its answer. It prints and stores nothing.
"""

import argparse
import statistics
import time

import numpy as np

from examples.dispatch.city.real import grubhub_task
from examples.dispatch.city.rounds import with_routes
from examples.dispatch.data.folder import data_folder
from examples.dispatch.data.grubhub import load_optima, load_problems
from examples.dispatch.route_plan import Batch, Options, Order, Pair, Rider, Solver, solve_batch, warm_up
from examples.dispatch.route_plan.build import build_batch
from examples.dispatch.route_plan.layout import INT32_MAX, STARTS_MAX

SIDE_M = 6000
RIDERS = 200


def random_batch(in_hand: int, on_board: int, new: int, options: Options, seed: int = 1) -> Batch:
    """Draw riders with so many orders in hand (some picked up) and so many candidate orders each, in a 6 km square."""
    rng = np.random.default_rng(seed)
    each = in_hand + new
    riders = np.zeros((RIDERS, len(Rider)), np.int32)
    riders[:, Rider.ID] = np.arange(RIDERS)
    riders[:, [Rider.X, Rider.Y]] = rng.integers(0, SIDE_M, (RIDERS, 2))
    riders[:, [Rider.CAPACITY, Rider.SPEED]] = 30, 320
    orders = np.zeros((RIDERS * each, len(Order)), np.int32)
    orders[:, : Order.DELIVERY_Y + 1] = rng.integers(0, SIDE_M, (len(orders), 4))
    orders[:, Order.READY] = rng.integers(0, 1500, len(orders))
    orders[:, Order.DUE] = orders[:, Order.READY] + rng.integers(1200, 3000, len(orders))
    orders[:, [Order.PICKUP_S, Order.DELIVERY_S]] = 240
    orders[:, [Order.LOAD, Order.WEIGHT, Order.PICKUP_DUE]] = 1, 1, INT32_MAX
    place = np.arange(len(orders)) % each
    orders[place < on_board, Order.ON_BOARD] = 1
    pairs = np.full((RIDERS * max(1, new), len(Pair)), -1, np.int32)
    pairs[:, Pair.RIDER] = np.repeat(np.arange(RIDERS), max(1, new))
    pairs[:, Pair.TASK] = np.arange(len(pairs))
    if new:
        pairs[:, Pair.FIRST] = np.flatnonzero(place >= in_hand)
    return Batch.from_tensors(
        {
            "riders": riders,
            "orders": orders,
            "hand_start": in_hand * np.arange(RIDERS + 1, dtype=np.int32),
            "hand": np.flatnonzero(place < in_hand).astype(np.int32),
            "route_start": np.zeros(RIDERS + 1, np.int32),
            "route": np.zeros(0, np.uint8),
            "pairs": pairs,
            "matrix_start": np.zeros(0, np.int64),
            "seconds": np.zeros(0, np.int32),
            "metres": np.zeros(0, np.int32),
            "options": options.tensor(),
        }
    )


def rate(batch: Batch, repeat: int) -> float:
    """Return pairs per second of this thread's CPU time, the median of the runs."""
    solve_batch(batch)
    seconds = []
    for _ in range(repeat):
        began = time.thread_time()
        solve_batch(batch)
        seconds.append(time.thread_time() - began)
    return len(batch.pairs) / statistics.median(seconds)


def insertion_batch(stops: int) -> Batch:
    """Pairs of one new order with routes of so many stops; an odd number has one order picked up."""
    held = (stops + 1) // 2
    drawn = random_batch(held, 2 * held - stops, 64, Options(solver=Solver.INSERT))
    return with_routes(drawn, Options(solver=Solver.TWO_STAGE, starts=4))


def gap_row(starts: int) -> str | None:
    """Return the Grubhub files' gap to their optima with so many starts; None where there is no data folder."""
    data = data_folder()
    if data is None:
        return None
    folder = data / "tsppd_grubhub"
    optima = {optimum.name: optimum.cost for optimum in load_optima(folder / "optimal.csv")}
    problems = load_problems(folder)
    options = Options(solver=Solver.TWO_STAGE, starts=starts, late_cost=0, wait_cost=0)
    batch = build_batch([grubhub_task(problem) for problem in problems], options)
    began = time.thread_time()
    cost = solve_batch(batch).cost
    spent_s = time.thread_time() - began
    best = np.array([optima[problem.name] for problem in problems])
    gap = 100.0 * (cost - best) / best
    optimal = f"{int((gap == 0).sum())}/{len(gap)}"
    return f"{starts:>6} {gap.mean():>9.3f} {gap.max():>8.2f} {optimal:>10} {1000 * spent_s:>9.0f}"


def main() -> None:
    """Print the rates and the gap table."""
    parser = argparse.ArgumentParser(prog="python -m examples.dispatch.route_plan.bench", description=__doc__)
    parser.add_argument("--repeat", type=int, default=5, help="runs per figure (default 5)")
    repeat = parser.parse_args().repeat
    warm_up()
    print(f"{'one order into an empty route, pairs/s':<58}{rate(insertion_batch(0), repeat):>12,.0f}")
    for stops in (10, 13):
        print(f"{f'insert, {stops} stops in hand, pairs/s':<58}{rate(insertion_batch(stops), repeat):>12,.0f}")
    for orders, starts in ((5, 4), (8, 4), (10, 4), (8, 32), (10, 32)):
        batch = random_batch(orders, 0, 0, Options(solver=Solver.TWO_STAGE, starts=starts))
        label = f"two_stage, {orders} orders, {starts} starts, tasks/s"
        print(f"{label:<58}{rate(batch, repeat):>12,.0f}")
    for orders in (4, 5, 6):
        batch = random_batch(orders, 0, 0, Options(solver=Solver.EXACT))
        print(f"{f'exact (soft-late), {orders} orders, tasks/s':<58}{rate(batch, repeat):>12,.0f}")
    print("\nGrubhub files, gap to the proved optimum")
    print(f"{'starts':>6} {'mean %':>9} {'max %':>8} {'optimal':>10} {'CPU ms':>9}")
    for starts in (1, 4, 16, 32, STARTS_MAX):
        print(gap_row(starts) or "no data folder: set OVERSPILL_DATA")


if __name__ == "__main__":
    main()
