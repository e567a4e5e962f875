"""The demo's round: what is sent, in which pieces, and the single-process answers that every reply must equal.

A job is one shard: its routes are planned (`route_plan`), then the delivery times of the same pairs are estimated
(`etr`) from the reply. Shards are uneven, as in life: the largest is more than ten times the median. The reference
answers are made before any node runs, by the same models in separate processes; their computing time says how long one
executor alone would need, and as many rounds are taken as make that longer than the limit. This module sends nothing.
Read `overspill/demo/drive.py` next.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from examples.dispatch import models as shipped_models
from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.city.real import RealPlan, grubhub_round, lilim_round
from examples.dispatch.city.rounds import with_shared_matrices
from examples.dispatch.data import grubhub, lilim
from examples.dispatch.etr.deliveries import read_deliveries
from examples.dispatch.etr.join import RoundFacts, inputs_of
from examples.dispatch.etr.modelfile import shipped
from examples.dispatch.etr.serve import Session
from examples.dispatch.route_plan import Answer, Rider, warm_up
from fabric.errors import ConfigError
from overspill.demo.drive import Arrays, Job, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from examples.dispatch.city.rounds import Round, Shard
    from examples.dispatch.etr.features import EtrInputs

OVERLOAD = 1.15
"""How much longer than the limit one executor alone should need, so that the local node cannot carry the load."""
ROUNDS_MAX = 24
PREPARE_S = 25.0
"""No further round is prepared after this long; on a slow or busy machine the limit shrinks with the load instead."""
JOBS_MIN = 12
"""Where one shard alone passes the limit, on a slow or busy machine, there must still be something to spill and to lose
a node under: twice the callers of `overspill/demo/drive.py`."""
MINI_JOBS = 48
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Work:
    """Jobs with their answers. `alone_s` is their computing time in one process."""

    title: str
    description: str
    models: Path
    jobs: list[Job]
    limit_s: float
    alone_s: float
    tables: tuple[np.ndarray[Any, Any], ...] = ()
    """Inputs that many jobs share, as the same objects: legs of whole rounds, in matrix mode."""


@dataclass(frozen=True, slots=True)
class _Solved:
    """One shard's single-process answers, and how long they took to compute."""

    plan: Arrays
    times: Arrays
    took_s: float


def make_round(data: Path | None, seed: int, limit_s: float, *, matrix: bool = False) -> Work:
    """Makes the jobs of a demo, from the generated city or from the data sets in the folder `data`, as many as one
    executor alone would compute for 1.15 times `limit_s` seconds. `matrix`: all shards of a round refer to one pair of
    tables with the legs of all pairs, and the answers are the same.

    Raises ConfigError when the folder does not hold them.
    """
    warm_up()  # compiles the kernels once, before the processes below and the executors look for them
    jobs: list[Job] = []
    sizes: list[int] = []
    taken: dict[str, list[tuple[Shard, _Solved]]] = {}
    alone_s = 0.0
    give_up_at = time.monotonic() + PREPARE_S
    with _pool() as pool:
        try:
            for each, shard, solved in _solved_shards(pool, data, seed):
                taken.setdefault(each.name, []).append((shard, solved))
                alone_s += solved.took_s
                sizes.append(len(shard.rows))
                if len(sizes) < JOBS_MIN:
                    continue
                if alone_s >= OVERLOAD * limit_s or time.monotonic() > give_up_at:
                    break
        finally:
            pool.shutdown(cancel_futures=True)
    tables: list[np.ndarray[Any, Any]] = []
    for name, parts in taken.items():
        shards = [shard for shard, _ in parts]
        if matrix:
            shards = with_shared_matrices(shards)
            tables += (shards[0].batch.seconds, shards[0].batch.metres)
        jobs += [
            _planning_job(f"{name}/{shard.number}", shard, solved)
            for shard, (_, solved) in zip(shards, parts, strict=True)
        ]
    if data is not None:
        jobs += _mini_jobs(data)
        alone_s = sum(job.work_s for job in jobs)
    limit_s = min(limit_s, alone_s / OVERLOAD)
    largest, median = max(sizes), int(np.median(sizes))
    description = (
        f"{sum(sizes)} rider-order pairs of {len(taken)} rounds in {len(jobs)} uneven shards (largest {largest},"
        f" median {median}); one executor alone would compute for {alone_s:.1f} s, the limit is {limit_s:.1f} s"
    )
    title = "a generated city" if data is None else "public routing instances and delivery records"
    return Work(title, description, Path(shipped_models.__file__).parent, jobs, limit_s, alone_s, tuple(tables))


def _pool() -> ProcessPoolExecutor:
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(min(PROCESSES, os.cpu_count() or 1), mp_context=context)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes that a pool starts in this block are deaf to Ctrl-C, which a terminal sends to all of them: the demo
    ends them, and none prints a traceback. A pool starts them as tasks are given to it. They inherit the mask, so they
    are deaf from the first moment; a Ctrl-C meanwhile reaches us after the block."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _rounds(data: Path | None, seed: int) -> Iterator[Round]:
    if data is None:
        for number in range(ROUNDS_MAX):
            yield city_round(CityPlan(seed=1000 * seed + number))
        return
    try:
        problems = grubhub.load_problems(data / "tsppd_grubhub")
        optima = grubhub.load_optima(data / "tsppd_grubhub" / "optimal.csv")
        vehicles = lilim.load_routes(data / "pdptw_lilim" / "routes_100_vroom.json")
        folder = data / "pdptw_lilim" / "li_lim_100"
        depots = [lilim.load_problem(path) for path in sorted(folder.glob("*.txt"))]
        for number in range(ROUNDS_MAX):
            plan = RealPlan(pairs=12_000, shards=40, seed=1000 * seed + number)
            yield grubhub_round(problems, optima, plan)
            yield lilim_round(depots, vehicles, RealPlan(pairs=2_000, shards=24, seed=plan.seed))
    except (OSError, ValueError) as error:
        why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else error
        raise ConfigError(f"{data} does not hold the data sets of the demo ({why}); give another --data") from None


def _solved_shards(pool: ProcessPoolExecutor, data: Path | None, seed: int) -> Iterator[tuple[Round, Shard, _Solved]]:
    for each in _rounds(data, seed):
        shards = list(each.shards())
        with _deaf_children():
            answers = pool.map(_solve, shards)  # hands all of them over at once
        yield from ((each, shard, solved) for shard, solved in zip(shards, answers, strict=True))


_session: Session | None = None


def _solve(shard: Shard) -> _Solved:
    """Runs in a process of its own: plans, then estimates, with the models that the nodes serve."""
    global _session  # noqa: PLW0603 - one session for each process of the pool, as an executor has
    if _session is None:
        _session = Session(shipped("etr"), threads=1)
        warm_up()
    began = time.perf_counter()
    plan: Arrays = dict(shard.reference().tensors())
    planned = time.perf_counter()
    inputs = delivery_inputs(shard, plan)
    walked = time.perf_counter()
    times: Arrays = {"arrival_min": _session.etr(inputs)}
    return _Solved(plan, times, time.perf_counter() - walked + planned - began)


def delivery_inputs(shard: Shard, answer: Mapping[str, np.ndarray[Any, Any]]) -> EtrInputs:
    """The delivery-time request about a planned shard. What a dispatcher's records would add to the route request
    stands at one neutral value: Monday 11:30, fair weather, a shop that needs what the order says."""
    batch = shard.batch
    riders, orders = len(batch.riders), len(batch.orders)

    def every(count: int, value: float) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.full(count, value, np.float32)

    facts = RoundFacts(
        minute_of_week=11 * 60 + 30,
        now_s=int(batch.riders[:, Rider.START].min(initial=0)),
        weather=0,
        rider_speed_m_per_min=batch.riders[:, Rider.SPEED].astype(np.float32),
        rider_level=every(riders, 3.0),
        shop=np.arange(orders, dtype=np.int32),
        area=np.full(orders, shard.number, np.int32),
        placed_s=np.zeros(orders, np.int32),
        prep_mean_min=every(orders, 15.0),
        prep_spread_min=every(orders, 5.0),
        riders_per_order=every(orders, riders / max(orders, 1)),
        orders_waiting=every(orders, orders),
    )
    return inputs_of(batch, Answer.from_tensors(answer), facts).trimmed()


def _planning_job(name: str, shard: Shard, solved: _Solved) -> Job:
    def plan_inputs(_: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        return shard.tensors()

    def etr_inputs(answer: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        inputs = delivery_inputs(shard, answer)
        return {field.name: getattr(inputs, field.name) for field in fields(inputs)}

    steps = Step("route_plan", plan_inputs, solved.plan), Step("etr", etr_inputs, solved.times)
    return Job(name, steps, solved.took_s)


def _mini_jobs(data: Path) -> list[Job]:
    """The delivery records in pieces of uneven size: one `etr_mini` request each."""
    try:
        inputs = read_deliveries(data).inputs
    except ValueError as error:
        raise ConfigError(str(error)) from None
    session = Session(shipped("etr_mini"), threads=1)
    total = len(inputs.ids)
    # Squares of the piece's number: the last piece is some fifty times the first.
    ends = (total * np.square(np.arange(1, MINI_JOBS + 1)) // MINI_JOBS**2).tolist()
    jobs = []
    for start, end in zip([0, *ends], ends, strict=False):
        rows = inputs.rows(np.arange(start, end))
        tensors: Arrays = {"ids": rows.ids, "dense": rows.dense}
        began = time.perf_counter()
        expected: Arrays = {"delivery_min": np.asarray(session.mini(rows))}
        took_s = time.perf_counter() - began
        jobs.append(Job(f"deliveries/{start}", (Step("etr_mini", partial(_same, tensors), expected),), took_s))
    return jobs


def _same(tensors: Arrays, _: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    return tensors
