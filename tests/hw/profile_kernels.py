"""Run each kernel twice, for a profiler: `ncu --clock-control none python3 -m tests.hw.profile_kernels`.

It measures nothing itself. docs/gpu.md says which counters bound which kernel.
"""

from __future__ import annotations

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.route_plan import Options, Solver
from examples.dispatch.route_plan.gpu import bench
from examples.dispatch.route_plan.gpu.cuda import open_engine


def main() -> None:
    """Two rounds of each kernel on batches like those of the benchmark."""
    engine = open_engine()
    batches = (
        bench.random_tasks(bench.Mix(6400, 10, 10, new=0), Options(solver=Solver.TWO_STAGE)),
        bench.random_tasks(bench.Mix(30_000, 5, 5, new=0, on_board=0.0), Options(solver=Solver.EXACT)),
        city_round(CityPlan(near=640, options=Options(solver=Solver.INSERT))).batch,
    )
    for batch in batches:
        bench.kernel_ms(engine, batch, repeat=1)


if __name__ == "__main__":
    main()
