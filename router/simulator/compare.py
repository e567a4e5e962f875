"""Runs policies over workloads, loads and seeds, and gives a table of what they came to.

Each (policy, load, seed) is a run of its own, from the trace of that seed, so they may run in any order and in several
processes with the same result. Read `router/simulator/report.py` next.
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from router.policies.base import Setting
from router.policies.oracle import OnTheWay
from router.policies.table import BY_NAME, Shared
from router.simulator.measure import Figures, figures, mean_of
from router.simulator.workload import draw
from router.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policies.base import Policy
    from router.policies.table import Entry
    from router.simulator.node import Node
    from router.simulator.workload import Workload


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load: the mean over the seeds, and the p99 of each seed."""

    policy: str
    load: float
    figures: Figures
    p99_ms: tuple[float, ...]


def simulate(world: Workload, policy: str, seed: int) -> World:
    """Runs one policy over the trace of one seed; the finished world. Raises ConfigError for an unknown policy."""
    entry = _entry(policy)
    shared = Shared(OnTheWay(len(world.speeds)))
    run = World(world, draw(world, seed), entry.snapshot_s, lambda nodes: _policies(world, seed, entry, shared, nodes))
    run.run()
    return run


def _policies(world: Workload, seed: int, entry: Entry, shared: Shared, nodes: Sequence[Node]) -> list[Policy]:
    routers = len(world.demand)
    return [
        entry.make(
            Setting(
                router=router,
                routers=routers,
                speeds=world.speeds,
                reach_s=world.reach_s(router),
                near=world.near(router),
                rng=Random((seed << 16) + router),  # noqa: S311 - chance of a simulation, replayed by its seed
                hinted=world.hint_error is not None,
                nodes=nodes,
            ),
            shared,
        )
        for router in range(routers)
    ]


def _entry(policy: str) -> Entry:
    found = BY_NAME.get(policy)
    if found is None:
        raise ConfigError(f"there is no policy {policy!r}; take some of {', '.join(BY_NAME)}")
    return found


def _one(job: tuple[Workload, str, int]) -> Figures:
    return figures(simulate(*job))


def _tell(progress: Callable[[int, int], None] | None, done: int, total: int) -> None:
    if progress is not None:
        progress(done, total)


def compare(
    world: Workload,
    policies: Sequence[str],
    loads: Sequence[float],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Cell, ...]:
    """All runs; one cell for each policy and load, in that order. Raises ConfigError."""
    for policy in policies:
        _entry(policy)
    jobs = [(replace(world, load=load), policy, seed) for policy in policies for load in loads for seed in seeds]
    found: list[Figures] = []
    if processes <= 1:
        for job in jobs:
            found.append(_one(job))
            _tell(progress, len(found), len(jobs))
    else:
        # A forked child would hold the locks of whatever threads the caller has.
        with ProcessPoolExecutor(min(processes, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
            for one in pool.map(_one, jobs):
                found.append(one)
                _tell(progress, len(found), len(jobs))
    cells = []
    for at in range(0, len(found), len(seeds)):
        runs = found[at : at + len(seeds)]
        world_of, policy, _ = jobs[at]
        cells.append(Cell(policy, world_of.load, mean_of(runs), tuple(run.p99_ms for run in runs)))
    return tuple(cells)
