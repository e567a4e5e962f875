"""What one decision costs: a router that picks among 256 workers, with and without keeping the decision.

    python -m tests.benchmarks.picks [--workers N] [--count N]

Each figure is CPU time of one thread for `Dispatcher.begin` (pick, price, booking), without sending anything. `reads`
adds the choice of pages to read; the read itself is the wire's. CPU time counts what a decision pays for caches that
another process had meanwhile, so it runs at a real-time priority where it may: in a busy machine that is the difference
between a p99 of 11 and one of 66 us (load 20 on two cores; with the garbage collector off, neither moves).
"""

from __future__ import annotations

import argparse
import os
import time
from random import Random

import numpy as np

from fabric.deadline import Deadline
from fabric.frame import Load
from router.attempt import Attempts
from router.config import RouterConfig
from router.fresh import far
from tests.unit.router.fleet import Fleet, body


def fleet_of(workers: int, kept: int) -> Fleet:
    fleet = Fleet(*(f"n{number}" for number in range(workers)), config=RouterConfig(seed=1, explain_kept=kept))
    rng = Random(1)
    kind = fleet.core.table.work.kind("plan", body().layout.body_bytes)
    for sequence, worker in enumerate(fleet.core.table.workers):
        worker.speed.learn(kind, rng.uniform(10.0, 30.0), fleet.now)
        worker.ahead.reported(Load(sequence + 1, 0, rng.randrange(50_000), 1), fleet.now)
    return fleet


def decisions_us(workers: int, count: int, *, kept: int = 0, reads: bool = False) -> list[float]:
    """CPU microseconds of each decision."""
    fleet, made, took = fleet_of(workers, kept), body(), []
    core, rng = fleet.core, Random(2)
    for _ in range(count):
        attempts = Attempts("plan", _deadline(fleet), idempotent=True, attempts_max=4, backoff=lambda _: 0.001)
        begin = time.thread_time_ns()
        if reads:
            kind = core.table.work.kind("plan", made.layout.body_bytes)
            attempts.fresh = tuple(far(core.table.offer("plan"), (), kind, 1.0, 5, rng, fleet.now))
        attempt = core._dispatcher.begin("plan", made, 0, attempts)
        took.append((time.thread_time_ns() - begin) / 1000.0)
        core._dispatcher.end(attempt, attempts)  # type: ignore[arg-type]
    return took


def undisturbed() -> bool:
    """Asks that nobody else gets this thread's core; whether that may be had."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    return True


def _deadline(fleet: Fleet) -> Deadline:
    return Deadline(fleet.now + 10.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--workers", type=int, default=256)
    parser.add_argument("--count", type=int, default=20_000)
    args = parser.parse_args()
    where = "at a real-time priority" if undisturbed() else "between other processes (no real-time priority may be had)"
    print(f"{args.workers} workers, {args.count} decisions; CPU microseconds, {where}")
    for name, kept, reads in (("explain off", 0, False), ("explain on", 1000, False), ("with reads", 0, True)):
        took = decisions_us(args.workers, args.count, kept=kept, reads=reads)
        print(f"{name:12} p50 {np.percentile(took, 50):6.1f}  p99 {np.percentile(took, 99):6.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
