"""Choose what plans: the GPU where there is one, or this process's CPU. Answers are the same, bit by bit.

A model's config names the device: "cpu", "gpu", or "auto", which takes the GPU if CuPy and a device are there and says
in the log why not otherwise. Whoever hides GPUs from a process (CUDA_VISIBLE_DEVICES empty) makes "auto" a CPU. CuPy is
imported only where a GPU may be used. Next: `solve.py`, and `gpu/solve.py`.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from typing import Protocol

from examples.dispatch.route_plan.build import OrderRow, RiderRow, Task, build_batch
from examples.dispatch.route_plan.contract import Answer, Batch, Options
from examples.dispatch.route_plan.gpu.check import check_build
from examples.dispatch.route_plan.gpu.cuda import CudaEngine, GpuMissing, open_engine
from examples.dispatch.route_plan.gpu.solve import solve_on
from examples.dispatch.route_plan.layout import COST_WEIGHT_MAX, Solver
from examples.dispatch.route_plan.solve import solve_batch, warm_up

DEVICES = ("auto", "cpu", "gpu")
LOG = logging.getLogger(__name__)


class Planner(Protocol):
    """What a model calls."""

    def solve(self, batch: Batch) -> Answer:
        """Plan every pair; the arrays are good until the next call."""

    def warm_up(self) -> None:
        """Do what the first request would otherwise wait for."""


class CpuPlanner:
    """numba kernels in the calling thread."""

    def solve(self, batch: Batch) -> Answer:
        """Plan every pair."""
        return solve_batch(batch)

    def warm_up(self) -> None:
        """Compile the kernels, or load them from the disk cache."""
        warm_up()


class GpuPlanner:
    """CUDA kernels on one GPU; numba plans the few tasks that are left to a CPU."""

    def __init__(self, engine: CudaEngine) -> None:
        self._engine = engine

    def solve(self, batch: Batch) -> Answer:
        """Plan every pair."""
        return solve_on(self._engine, batch)

    def warm_up(self) -> None:
        """Compile the kernels of all kinds and hold them to the CPU's answers (seconds, once a machine and build).

        Raises WrongBuild where they differ.
        """
        warm_up()
        from examples.dispatch.route_plan.jit import cache_folder

        if check_build(self._engine, self._engine.build, cache_folder()):
            return
        task = Task(RiderRow(), (OrderRow(pickup=(0, 9), delivery=(0, 60_000)),), (OrderRow(delivery=(60_000, 0)),))
        dear = Options(solver=Solver.TWO_STAGE, metre_cost=COST_WEIGHT_MAX, late_cost=COST_WEIGHT_MAX)
        for options in (Options(solver=Solver.TWO_STAGE), dear, replace(dear, hard_tw=True)):
            self.solve(build_batch([task], options))


def planner_for(device: str) -> Planner:
    """The planner of a device.

    Raises ValueError for a word that is none of DEVICES, GpuMissing for "gpu" where there is none.
    """
    if device not in DEVICES:
        raise ValueError(f'parameter device is {device!r}, it must be "auto", "cpu" or "gpu"')
    if device == "cpu" or (device == "auto" and os.environ.get("CUDA_VISIBLE_DEVICES") == ""):
        return CpuPlanner()
    try:
        return GpuPlanner(open_engine())
    except GpuMissing as reason:
        if device == "gpu":
            raise
        LOG.info("route_plan plans on the CPU: %s", reason)
        return CpuPlanner()
