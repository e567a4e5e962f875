"""The kernels' text gives the CPU solver's answers, field by field, when a C++ compiler builds it for this machine."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.city.rounds import with_matrices
from examples.dispatch.route_plan import Answer, Batch, Option, Options, Solver, Status, solve_batch
from examples.dispatch.route_plan.build import build_batch
from examples.dispatch.route_plan.gpu import check, geometry
from examples.dispatch.route_plan.gpu.solve import solve_on
from examples.dispatch.route_plan.gpu.source import NODES_SURE, Flag
from examples.dispatch.route_plan.layout import COST_WEIGHT_MAX, INT32_MAX
from tests.unit.examples import test_route_bad_input as bad
from tests.unit.examples.conftest import make_task
from tests.unit.examples.cpp_engine import CppEngine, build, compiler
from tests.unit.examples.test_route_moves import unkind_task

if TYPE_CHECKING:
    from pathlib import Path

    from examples.dispatch.route_plan.gpu.geometry import Work

PRICES = {
    "usual": Options(starts=6),
    "hard windows": Options(starts=6, hard_tw=True, finish_cost=3),
    "64 bits": Options(starts=6, late_cost=COST_WEIGHT_MAX, metre_cost=COST_WEIGHT_MAX),
    "metres only": Options(starts=6, late_cost=0, wait_cost=0),
    "dear time": Options(starts=6, finish_cost=7, wait_cost=30),
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> CppEngine:
    if compiler() is None:
        pytest.skip("no C++ compiler: install g++")
    folder: Path = tmp_path_factory.mktemp("kernels")
    return CppEngine(build(folder))


def same(engine: CppEngine, batch: Batch) -> np.ndarray:
    wanted, got = solve_batch(batch), solve_on(engine, batch)
    for name, array in wanted.tensors().items():
        rows = np.flatnonzero((getattr(got, name) != array).reshape(len(array), -1).any(axis=1))
        assert not len(rows), f"{name} differs in {len(rows)} pairs, first in {rows[0]}"
    return wanted.status


def random_batch(seed: str, options: Options, tasks: int, most: int) -> Batch:
    rng = random.Random(seed)
    made = [make_task(rng, rng.randrange(most - 1), rng.randrange(3)) for _ in range(tasks)]
    if options.hard_tw:  # windows that some routes can keep
        made = [
            replace(task, hand=tuple(replace(order, due=order.due + rng.randrange(6000)) for order in task.hand))
            for task in made
        ]
    return build_batch(made, options)


@pytest.mark.parametrize("prices", PRICES)
@pytest.mark.parametrize("solver", list(Solver), ids=lambda solver: solver.name.lower())
def test_answers_are_the_cpu_solver_s(engine: CppEngine, solver: Solver, prices: str) -> None:
    options = replace(PRICES[prices], solver=solver)
    batch = random_batch(f"{solver} {prices}", options, 60, 8 if solver == Solver.EXACT else 12)
    status = same(engine, batch)
    assert (status == Status.OK).any()
    same(engine, with_matrices(batch))


@pytest.mark.parametrize("solver", [Solver.INSERT, Solver.TWO_STAGE, Solver.AUTO], ids=lambda s: s.name.lower())
def test_legs_without_any_order_change_nothing(engine: CppEngine, solver: Solver) -> None:
    rng = random.Random(f"unkind {solver}")
    tasks = [unkind_task(rng, rng.randrange(1, 9)) for _ in range(60)]
    same(engine, build_batch(tasks, Options(solver=solver, starts=5, late_cost=3)))


def test_a_city_round_and_its_parts_are_the_same(engine: CppEngine) -> None:
    city = city_round(CityPlan(seed=4, orders=40, riders=120, near=8, options=Options(starts=8)))
    same(engine, city.batch)
    whole = solve_on(engine, city.batch)
    for shard in city.shards():
        part = solve_on(engine, shard.batch)
        for name, array in part.tensors().items():
            assert np.array_equal(array, getattr(whole, name)[shard.rows]), name


def test_what_a_search_may_not_finish_goes_to_the_cpu(engine: CppEngine) -> None:
    options = Options(solver=Solver.AUTO, starts=4, nodes_max=NODES_SURE - 1)
    same(engine, random_batch("few nodes", options, 40, 8))
    same(engine, with_matrices(random_batch("few nodes", replace(options, solver=Solver.EXACT), 20, 7)))


@pytest.mark.parametrize(("change", "status"), [fault[1:] for fault in bad.FAULTS], ids=[f[0] for f in bad.FAULTS])
def test_a_fault_gets_its_status_here_too(engine: CppEngine, change: bad.Change, status: Status) -> None:
    tensors = {name: array.copy() for name, array in bad.three_pairs().tensors().items()}
    change(tensors)
    assert same(engine, Batch.from_tensors(tensors))[1] == status


@pytest.mark.parametrize("seed", range(60))
def test_noise_gets_the_same_statuses(engine: CppEngine, seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.array([-(2**31), -2, -1, 0, 1, 2, 3, 16, 17, 255, INT32_MAX], np.int64)
    base = bad.three_pairs()
    if seed % 2:
        base = with_matrices(base)
    tensors = {}
    for name, array in base.tensors().items():
        hits = rng.random(array.shape) < rng.choice([0.02, 0.2, 1.0])
        noisy = np.where(hits, rng.choice(edges, array.shape), array).astype(array.dtype)
        tensors[name] = array if name == "options" else noisy
    options = tensors["options"].copy()
    options[Option.SOLVER], options[Option.STARTS] = rng.integers(0, 4), 2
    same(engine, Batch.from_tensors({**tensors, "options": options}))


def test_both_sides_count_the_same_memory(engine: CppEngine) -> None:
    for orders in range(1, 17):
        for worth in (geometry.NARROW, geometry.WIDE, geometry.HARD):
            for flags in (Flag(0), Flag.EXACT, Flag.LEAN, Flag.LEAN | Flag.HANDS):
                assert engine.bytes_of_task(orders, worth, flags) == geometry.task_bytes(orders, worth, flags, lanes=1)


def test_a_build_is_compared_once_and_a_wrong_one_refused(
    engine: CppEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert check.check_build(engine, "g++", str(tmp_path), tasks=40)
    assert not check.check_build(engine, "g++", str(tmp_path), tasks=40)
    assert check.check_build(engine, "another g++", str(tmp_path), tasks=40)

    def wrong(worth: int, hands: Work, pairs: Work) -> Answer:
        answer = CppEngine.run(engine, worth, hands, pairs)
        answer.cost[-1] += 1
        return answer

    monkeypatch.setattr(engine, "run", wrong)
    with pytest.raises(check.WrongBuild, match="compiled by a bad one, plan 1 of 40 tasks wrongly"):
        check.check_build(engine, "a bad one", str(tmp_path), tasks=40)
    assert len(list(tmp_path.iterdir())) == 2
