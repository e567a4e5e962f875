"""route_plan on a GPU: equal to the CPU solver in every field, whatever the launch, and how fast.

`make hw ARGS=tests/hw/test_route_plan_gpu.py`. Goals were set for an H200; on other cards the figures are reported and
only equality is asserted.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.city.rounds import with_matrices
from examples.dispatch.route_plan import Options, Solver, solve_batch
from examples.dispatch.route_plan.gpu import bench, check
from examples.dispatch.route_plan.gpu.cuda import CudaEngine, GpuMissing, Settings, open_engine
from examples.dispatch.route_plan.gpu.solve import solve_on
from tests.unit.examples import test_route_bad_input as bad

if TYPE_CHECKING:
    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(600),
    pytest.mark.leaks("CUDA keeps its threads and descriptors for the life of a process"),
]

CORES = os.cpu_count() or 1
DEAR = {"late_cost": 60_000, "metre_cost": 60_000}
BUILDS = [Settings(128, 1), Settings(128, 4), Settings(96, 2), Settings(0, 1)]
GOALS = {  # on an H200
    "two_stage_10_orders_6400_tasks_kernel_ms": 50.0,
    "exact_5_orders_30000_tasks_kernel_ms": 1000.0,
    "round_auto_whole_ms": 250.0,
    "round_two_stage_whole_ms": 250.0,
    "insert_whole_ms": 171.4,  # 1.71 million pairs at 10 million a second
}


@pytest.fixture(scope="module")
def engine(report: Report) -> CudaEngine:
    try:
        opened = open_engine()
    except GpuMissing as reason:
        pytest.skip(str(reason))
    import cupy

    report.device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    report.add(
        "route_plan",
        cupy=importlib.metadata.version("cupy-cuda13x"),
        cuda_runtime=cupy.cuda.runtime.runtimeGetVersion(),
        driver=cupy.cuda.runtime.driverGetVersion(),
    )
    return opened


def test_mixed_tasks_equal_the_cpu_field_by_field(engine: CudaEngine, report: Report) -> None:
    """OR-5: seeded tasks of 1 to 12 orders, all solvers, 32-bit, 64-bit and hard worths, several builds and blocks."""
    builds = [engine, *(open_engine(build) for build in BUILDS[1:])]
    compared, cpu_s = 0, 0.0
    for number, solver in enumerate((Solver.INSERT, Solver.TWO_STAGE, Solver.AUTO)):
        for extra in ({}, {"hard_tw": True}, DEAR):
            mix = check.Mix(13_000, 1, 10, new=2, seed=17 * number + len(extra))
            batch = check.random_tasks(mix, Options(solver=solver, **extra))
            began = time.perf_counter()
            wanted = bench.solve_on_cores(batch, CORES)
            cpu_s += time.perf_counter() - began
            for build in builds:
                assert check.different(solve_on(build, batch), wanted) == {}, (solver, extra)
            compared += len(batch.pairs)
    report.add(
        "route_plan", equal_tasks=compared, equal_builds=[[b.registers_max, b.warps] for b in BUILDS], equal_cpu_s=cpu_s
    )
    assert compared >= 100_000


def test_matrices_order_and_shards_change_nothing(engine: CudaEngine) -> None:
    city = city_round(CityPlan(seed=6, orders=120, riders=400, near=24))
    wanted = bench.solve_on_cores(city.batch, CORES)
    assert check.different(solve_on(engine, city.batch), wanted) == {}
    assert check.different(solve_on(engine, with_matrices(city.batch)), wanted) == {}
    turned = np.random.default_rng(1).permutation(len(city.batch.pairs))
    answer = solve_on(engine, replace(city.batch, pairs=city.batch.pairs[turned]))
    for name, array in answer.tensors().items():
        assert np.array_equal(array, getattr(wanted, name)[turned]), name
    for shard in city.shards():
        answer = solve_on(engine, shard.batch)
        for name, array in answer.tensors().items():
            assert np.array_equal(array, getattr(wanted, name)[shard.rows]), name


def test_faults_get_their_statuses(engine: CudaEngine) -> None:
    for name, change, status in bad.FAULTS:
        tensors = {key: array.copy() for key, array in bad.three_pairs().tensors().items()}
        change(tensors)
        batch = type(bad.three_pairs()).from_tensors(tensors)
        answer = solve_on(engine, batch)
        assert answer.status[1] == status, name
        assert check.different(answer, solve_batch(batch)) == {}, name


def test_speed(engine: CudaEngine, report: Report) -> None:
    figures = bench.measure(engine, repeat=5)
    ten = check.random_tasks(check.Mix(6400, 10, 10, new=0), Options(solver=Solver.TWO_STAGE))
    figures["cpu_cores"] = CORES
    figures["two_stage_10_orders_6400_tasks_cpu_ms"] = 1e3 * bench.median_s(
        partial(bench.solve_on_cores, ten, CORES), 3
    )
    figures["two_stage_10_orders_6400_tasks_whole_ms"] = 1e3 * bench.median_s(partial(solve_on, engine, ten), 5)
    city = city_round(CityPlan()).batch
    figures["round_auto_cpu_ms"] = 1e3 * bench.median_s(partial(bench.solve_on_cores, city, CORES), 3)
    report.add("route_plan", **{name: round(value, 3) for name, value in figures.items()})
    if "H200" in report.device:
        slow = {name: figures[name] for name, most in GOALS.items() if figures[name] > most}
        assert not slow, f"slower than the goals: {slow}"
