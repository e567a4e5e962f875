"""Runs policies over workloads, loads and seeds, and gives a table of what they came to.

Each (policy, load, seed) is a run of its own, from the trace of that seed, so they may run in any order and in several
processes with the same result. Read `router/simulator/report.py` next.
"""

from __future__ import annotations

import os
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from random import Random
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from router.policies.base import Setting
from router.policies.oracle import OnTheWay
from router.policies.table import BY_NAME, Shared
from router.simulator.measure import Figures, figures, mean_of
from router.simulator.pulled import PullingWorld
from router.simulator.workload import draw
from router.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policies.base import Policy
    from router.policies.table import Entry
    from router.simulator.node import Node
    from router.simulator.workload import Workload

TOLD_S = 1.0
"""Between two words of how far it is: longer, and somebody who waits wonders."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One policy at one load: the mean over the seeds, and the p99 of each seed."""

    policy: str
    load: float
    figures: Figures
    p99_ms: tuple[float, ...]


def simulate(world: Workload, policy: str, seed: int, tell: Callable[[float], None] | None = None) -> World:
    """Runs one policy over the trace of one seed; the finished world. `tell` is told now and then which part of it is
    done. Raises ConfigError for an unknown policy."""
    entry = _entry(policy)
    shared = Shared(OnTheWay(len(world.speeds)))
    trace = draw(world, seed)
    policies = partial(_policies, world, seed, entry, shared)
    if entry.pulled:
        run: World = PullingWorld(world, trace, policies, Random(seed))  # noqa: S311 - chance of a simulation
    else:
        run = World(world, trace, entry.snapshot_s, policies)
    run.run(tell)
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


def _in_turn(jobs: Sequence[tuple[Workload, str, int]], progress: Callable[[float, int], None]) -> list[Figures]:
    found: list[Figures] = []
    for world, policy, seed in jobs:
        run = simulate(world, policy, seed, lambda part: progress(len(found) + part, len(jobs)))
        found.append(figures(run))
        progress(len(found), len(jobs))
    return found


def _at_once(
    jobs: Sequence[tuple[Workload, str, int]], processes: int, progress: Callable[[float, int], None]
) -> list[Figures]:
    # A forked child would hold the locks of whatever threads the caller has.
    with ProcessPoolExecutor(min(processes, os.cpu_count() or 1), mp_context=get_context("spawn")) as pool:
        out = [pool.submit(_one, job) for job in jobs]
        left = set(out)
        while left:
            _, left = wait(left, timeout=TOLD_S, return_when=FIRST_COMPLETED)
            progress(len(jobs) - len(left), len(jobs))
        return [one.result() for one in out]


def compare(
    world: Workload,
    policies: Sequence[str],
    loads: Sequence[float],
    seeds: Sequence[int],
    *,
    processes: int = 1,
    progress: Callable[[float, int], None] | None = None,
) -> tuple[Cell, ...]:
    """All runs; one cell for each policy and load, in that order. `progress` is told how many runs are done (with parts
    of one where they run one by one), and of how many; at least once a second. Raises ConfigError."""
    for policy in policies:
        _entry(policy)
    jobs = [(replace(world, load=load), policy, seed) for policy in policies for load in loads for seed in seeds]
    progress = progress or (lambda _, __: None)
    progress(0, len(jobs))
    found = _in_turn(jobs, progress) if processes <= 1 else _at_once(jobs, processes, progress)
    cells = []
    for at in range(0, len(found), len(seeds)):
        runs = found[at : at + len(seeds)]
        world_of, policy, _ = jobs[at]
        cells.append(Cell(policy, world_of.load, mean_of(runs), tuple(run.p99_ms for run in runs)))
    return tuple(cells)
