"""The front of the planner on a device: one call takes a batch and gives the answers that solve.py gives, bit by bit.

Most tasks are planned with 32-bit costs; the few whose costs might not fit are planned again with 64 bits, and those
that only a CPU searches to the end (exact with more than five orders, or with a bound on its nodes) go to
`solve_batch`. It knows no CUDA: an Engine carries launches out. Next: `cuda.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from examples.dispatch.route_plan.contract import OUTPUTS, Answer, Batch
from examples.dispatch.route_plan.gpu.geometry import (
    HARD,
    NARROW,
    WIDE,
    Rows,
    Work,
    exact_orders,
    orders_in_hand,
    orders_of_pairs,
    pair_flags,
    riders_of,
    work_for,
)
from examples.dispatch.route_plan.gpu.packing import Plan, plan_of
from examples.dispatch.route_plan.gpu.source import ELSEWHERE, RETRY_WIDE, Flag
from examples.dispatch.route_plan.layout import Option
from examples.dispatch.route_plan.solve import solve_batch


class Engine(Protocol):
    """What runs the kernels: a GPU, or a C++ build of the same text in a test."""

    def load(self, plan: Plan, batch: Batch) -> None:
        """Bring a batch to the device."""

    def run(self, worth: int, hands: Work, pairs: Work) -> Answer:
        """Plan the riders' hands, then the pairs, and fetch the whole reply; it is good until the next call."""


def solve_on(engine: Engine, batch: Batch) -> Answer:
    """Plan every pair of a batch on the engine's device. The answer equals `solve_batch(batch)` field by field."""
    if len(batch.pairs) == 0:
        return solve_batch(batch)
    engine.load(plan_of(batch), batch)
    everything = np.arange(len(batch.pairs), dtype=np.int32)
    answer = _run(engine, batch, HARD if batch.options[Option.HARD_TW] else NARROW, everything)
    again = np.flatnonzero(answer.status == RETRY_WIDE).astype(np.int32)
    if len(again):
        answer = _run(engine, batch, WIDE, again)
    left = np.flatnonzero(answer.status == ELSEWHERE)
    return _completed(answer, batch, left) if len(left) else answer


def _run(engine: Engine, batch: Batch, worth: int, rows: Rows) -> Answer:
    exact = exact_orders(batch)
    by_place = len(batch.matrix_start) == 0
    riders = riders_of(batch, rows) if by_place else rows[:0]
    hands = work_for(riders, orders_in_hand(batch)[riders], worth, Flag.HANDS, exact)
    pairs = work_for(rows, orders_of_pairs(batch)[rows], worth, pair_flags(batch), exact)
    return engine.run(worth, hands, pairs)


def _completed(answer: Answer, batch: Batch, rows: np.ndarray) -> Answer:
    """The answer with some rows planned by this process's CPU."""
    planned = solve_batch(_some(batch, rows))
    whole = {name: array.copy() for name, array in answer.tensors().items()}
    for name, _, _ in OUTPUTS:
        whole[name][rows] = getattr(planned, name)
    return Answer(**whole)


def _some(batch: Batch, rows: np.ndarray) -> Batch:
    """The batch with some of its pairs only; all tables stay, but the pairs' own matrices move together."""
    if len(batch.matrix_start) == 0:
        return replace(batch, pairs=np.ascontiguousarray(batch.pairs[rows]))
    # What is left to a CPU was loaded before, so these offsets are sound.
    first, last = batch.matrix_start[rows], batch.matrix_start[rows + 1]
    places = np.concatenate([np.arange(a, b) for a, b in zip(first, last, strict=True)])
    return replace(
        batch,
        pairs=np.ascontiguousarray(batch.pairs[rows]),
        matrix_start=np.concatenate([[0], np.cumsum(last - first)]),
        seconds=batch.seconds[places],
        metres=batch.metres[places],
    )
