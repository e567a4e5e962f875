"""What a dispatch round is: riders, orders, candidate pairs, and the shards they are sent in.

Tables are those of route_plan (route_plan/layout.py). A shard holds rows of its own, cut out of the round, so that one
shard is one request. The reference answers are made here in one process; the fabric's replies must equal them byte by
byte. It never sends anything. Next: generate.py.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan import Answer, Batch, Option, Options, Order, Pair, Rider, solve_batch
from examples.dispatch.route_plan.contract import Tensor
from examples.dispatch.route_plan.layout import NO_STOP


@dataclass(frozen=True, slots=True)
class Shard:
    """One request's share of a round; rows[k] is the round's pair that the shard's pair k is."""

    number: int
    rows: NDArray[np.int64]
    batch: Batch

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of one route_plan request (route_plan/contract.py gives names, dtypes and shapes)."""
        return self.batch.tensors()

    def reference(self) -> Answer:
        """Return the single-process answer, the one that every reply must equal."""
        return solve_batch(self.batch)


@dataclass(frozen=True, slots=True)
class Round:
    """A whole round as one batch of pairs, and the shard (0..shards-1) of each pair: int32 [P]."""

    name: str
    batch: Batch
    shard_of: NDArray[np.int32]

    @property
    def pairs(self) -> int:
        """Number of (rider, new order) pairs."""
        return len(self.batch.pairs)

    def shards(self) -> Iterator[Shard]:
        """Cut the round into its shards, largest first: a scheduler does best when the big pieces start early."""
        numbers, counts = np.unique(self.shard_of, return_counts=True)
        for number in numbers[np.argsort(-counts, kind="stable")]:
            rows = np.flatnonzero(self.shard_of == number)
            yield Shard(int(number), rows, cut(self.batch, rows))


def cut(batch: Batch, rows: NDArray[np.int64]) -> Batch:
    """Return the batch of some of its pairs, with only the rows that they need, numbered anew.

    Answers stay the same: numbers that seed the planner (rider ids, task numbers) travel as they are.
    """
    pairs = batch.pairs[rows]
    riders, new_rider = np.unique(pairs[:, Pair.RIDER], return_inverse=True)
    hand_start, hand = _cut_ragged(batch.hand_start, batch.hand, riders)
    route_start, route = _cut_ragged(batch.route_start, batch.route, riders)
    fresh = pairs[:, [Pair.FIRST, Pair.SECOND]]
    orders = np.unique(np.concatenate([hand, fresh[fresh >= 0]]))
    pairs[:, Pair.RIDER] = new_rider
    pairs[:, [Pair.FIRST, Pair.SECOND]] = np.where(fresh >= 0, np.searchsorted(orders, fresh), fresh)
    matrix_start, seconds, metres = batch.matrix_start, batch.seconds, batch.metres
    if len(matrix_start):
        matrix_start, seconds = _cut_ragged(batch.matrix_start, batch.seconds, rows)
        _, metres = _cut_ragged(batch.matrix_start, batch.metres, rows)
    return replace(
        batch,
        riders=batch.riders[riders],
        orders=batch.orders[orders],
        hand_start=hand_start,
        hand=np.searchsorted(orders, hand).astype(np.int32),
        route_start=route_start,
        route=route,
        pairs=pairs,
        matrix_start=matrix_start,
        seconds=seconds,
        metres=metres,
    )


def with_routes(batch: Batch, options: Options) -> Batch:
    """Return the batch with every rider's route in hand planned by these options (as riders have one in life).

    Riders whose hand cannot be planned keep an empty route.
    """
    riders = len(batch.riders)
    alone = np.full((riders, len(Pair)), -1, np.int32)
    alone[:, Pair.RIDER] = np.arange(riders)
    stops = solve_batch(replace(batch, pairs=alone, options=options.tensor())).stops
    lengths = (stops != NO_STOP).sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return replace(batch, route=stops[stops != NO_STOP], route_start=starts)


def with_matrices(batch: Batch) -> Batch:
    """Return a coord-mode batch in matrix mode, with equal answers: each pair then carries its own legs.

    It is the honest load for a transport: 3.5 KB per pair of ten orders instead of some 20 bytes. Fields must be sound.
    """
    seconds, metres = [], []
    detour = int(batch.options[Option.DETOUR_PERMILLE]) / 1000.0
    for pair in batch.pairs:
        rider = batch.riders[pair[Pair.RIDER]].astype(np.int64)
        first, last = batch.hand_start[pair[Pair.RIDER]], batch.hand_start[pair[Pair.RIDER] + 1]
        rows = [*batch.hand[first:last], *(row for row in pair[[Pair.FIRST, Pair.SECOND]] if row >= 0)]
        stops = batch.orders[rows, : Order.DELIVERY_Y + 1].astype(np.int64).reshape(-1, 2)
        spots = np.concatenate([rider[None, [Rider.X, Rider.Y]], stops])
        if rider[Rider.HAS_END]:
            spots = np.concatenate([spots, rider[None, [Rider.END_X, Rider.END_Y]]])
        squares = ((spots[:, None, :] - spots[None, :, :]) ** 2).sum(axis=2)
        way = np.ceil(detour * np.sqrt(squares.astype(np.float64))).astype(np.int64)
        metres.append(way.astype(np.int32).ravel())
        seconds.append((-(-way * 60 // rider[Rider.SPEED])).astype(np.int32).ravel())
    sizes = np.array([0, *(len(entries) for entries in metres)], np.int64)
    none = np.zeros(0, np.int32)
    return replace(
        batch,
        matrix_start=np.cumsum(sizes),
        seconds=np.concatenate([none, *seconds]),
        metres=np.concatenate([none, *metres]),
    )


def with_shared_matrices(shards: Sequence[Shard]) -> list[Shard]:
    """Return shards that all refer to one pair of tables, seconds and metres, which hold the legs of all their pairs.

    Answers stay the same. The tables are the same objects in each batch: a caller who sends many shards, or the same
    pairs again under other options, lets its router keep them where they are used (`router.resident`).
    """
    heavy = [shard.batch if len(shard.batch.matrix_start) else with_matrices(shard.batch) for shard in shards]
    seconds = np.concatenate([batch.seconds for batch in heavy])
    metres = np.concatenate([batch.metres for batch in heavy])
    begins = np.cumsum([0, *(len(batch.seconds) for batch in heavy)])
    return [
        replace(
            shard,
            batch=replace(batch, matrix_start=batch.matrix_start + begin, seconds=seconds, metres=metres),
        )
        for shard, batch, begin in zip(shards, heavy, begins, strict=False)
    ]


def _cut_ragged(start: Tensor, values: Tensor, rows: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    lengths = start[rows + 1] - start[rows]
    new_start = np.concatenate([[0], np.cumsum(lengths)]).astype(start.dtype)
    within = np.arange(new_start[-1]) - np.repeat(new_start[:-1], lengths)
    return new_start, values[np.repeat(start[rows], lengths) + within]
