"""What one queue for all routers would come to, whose keeper knows each worker's true pace: bounds for late binding.

    python -m tests.benchmarks.pooled [--requests N] [--seeds N]

No router could have it: it costs no message and no time. `blind` knows no size of any request; a worker of a lower pace
is held back until more than so many wait. `hinted` knows the hints; an idle worker takes the request with the least
time left among those that it would answer in time, if any. Figures are p99 over an oracle's of the same traces;
docs/routing.md tells what routers come to.
"""

from __future__ import annotations

import argparse
from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np

from router.simulator.compare import simulate
from router.simulator.measure import figures
from router.simulator.node import Node
from router.simulator.workload import W_GPU, draw

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.simulator.workload import Trace, Workload

PACES = (0.25, 0.45, 0.9, 1.5)
"""Upper ends of the paces that a worker of W-GPU has, slow spells counted; the last class has none."""
HELD_BACK = ((0, 0, 0, 0), (10, 10, 10, 0), (40, 20, 10, 0), (60, 40, 20, 2), (80, 60, 40, 0), (200, 100, 60, 0))
"""How many must wait for a worker of each class to begin one."""
IN_TIME_MS = (70.0, 85.0, 100.0, 115.0)


def pooled(world: Workload, trace: Trace, take: Callable[[deque[int], float, float], int | None]) -> float:
    """p99 in milliseconds, the way there and back included."""
    nodes = [Node(number, world, trace.spells[number]) for number in range(len(world.speeds))]
    idle, queue, done_s = set(range(len(nodes))), deque[int](), [0.0] * len(trace.at_s)
    ends: list[tuple[float, int]] = []
    arriving = 0

    def begin(now: float) -> None:
        while idle and queue:
            best = max(idle, key=lambda worker: nodes[worker].pace(now))
            task = take(queue, nodes[best].pace(now), now)
            if task is None:
                return
            queue.remove(task)
            idle.discard(best)
            done_s[task] = nodes[best].finish_s(now, trace.work_ms[task])
            heappush(ends, (done_s[task], best))

    while arriving < len(trace.at_s) or ends:
        if arriving < len(trace.at_s) and (not ends or trace.at_s[arriving] <= ends[0][0]):
            now = trace.at_s[arriving]
            queue.append(arriving)
            arriving += 1
        else:
            now, worker = heappop(ends)
            idle.add(worker)
        begin(now)
    way_ms = 2000.0 * world.far_s
    counted = [number for number in range(world.warm_up, len(trace.at_s)) if done_s[number]]
    return float(np.percentile([(done_s[each] - trace.at_s[each]) * 1000.0 + way_ms for each in counted], 99))


def blind(held_back: tuple[int, ...]) -> Callable[[deque[int], float, float], int | None]:
    def take(queue: deque[int], pace: float, _: float) -> int | None:
        waiting = next((least for most, least in zip(PACES, held_back, strict=True) if pace < most), 0)
        return queue[0] if len(queue) > waiting else None

    return take


def hinted(trace: Trace, in_time_ms: float) -> Callable[[deque[int], float, float], int | None]:
    fastest = max(W_GPU.speeds)

    def take(queue: deque[int], pace: float, now: float) -> int | None:
        def key(task: int) -> tuple[bool, float]:
            took_ms, hint_ms = (now - trace.at_s[task]) * 1000.0, trace.hint_ms[task]
            return took_ms + hint_ms / pace > in_time_ms, in_time_ms - took_ms - hint_ms / fastest

        best = min(queue, key=key)
        late, left_ms = key(best)
        # What would be late here, and would not be at a fast one, waits for that.
        return None if late and pace < fastest and left_ms > 0.0 else best

    return take


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--seeds", type=int, default=5)
    args = parser.parse_args()
    seeds = range(1, args.seeds + 1)
    base = replace(W_GPU, requests=args.requests, warm_up=args.requests // 5)
    world = replace(base, load=0.9, hint_error=None)
    oracle = sum(figures(simulate(world, "oracle", seed)).p99_ms for seed in seeds)
    for held_back in HELD_BACK:
        ratio = sum(pooled(world, draw(world, seed), blind(held_back)) for seed in seeds) / oracle
        print(f"90 %, blind, held back {held_back!s:18} {ratio:.2f} of the oracle", flush=True)
    world = replace(base, load=0.95)
    greedy = sum(figures(simulate(world, "greedy", seed)).p99_ms for seed in seeds)
    for in_time_ms in IN_TIME_MS:
        traces = [draw(world, seed) for seed in seeds]
        ratio = sum(pooled(world, trace, hinted(trace, in_time_ms)) for trace in traces) / greedy
        print(f"95 %, hinted, in time {in_time_ms:5.0f} ms {ratio:.2f} of the greedy oracle", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
