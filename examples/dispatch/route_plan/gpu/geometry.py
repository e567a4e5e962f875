"""How a batch is cut into launches: which rows go together, and how much memory a warp takes.

Tasks of like size share a launch, for a warp's memory is laid out for the largest task of its launch, and the more
warps a multiprocessor holds the better it hides waiting. Large tasks start first, so that small ones fill the end. It
is plain numpy and needs no GPU. Next: `packing.py`.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.gpu.source import Flag
from examples.dispatch.route_plan.layout import EXACT_ORDERS_AUTO, ORDERS_MAX, Option, Pair, Solver

if TYPE_CHECKING:
    from examples.dispatch.route_plan.contract import Batch

LANES = 32
SIZES = (2, 3, 4, 5, 6, 8, 10, 12, ORDERS_MAX)  # most orders of a task in one launch
NARROW, WIDE, HARD = range(3)  # what a route's worth is kept in, see portable.cu
WORTH_BYTES = (4, 8, 16)
WARPS = 1  # a block of one warp leaves its place as soon as its task is done
WARPS_LEAN = 4  # insertion takes little memory: with single warps the limit of blocks would bind

Rows = NDArray[np.int32]
Sizes = NDArray[np.uint8]
_KIND_OF = np.searchsorted(SIZES, np.arange(ORDERS_MAX + 1)).astype(
    np.uint8
)  # the place in SIZES of each number of orders


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch over rows[first : last] of its list."""

    orders: int
    first: int
    last: int
    flags: Flag
    warps: int  # of a block
    warp_bytes: int  # of shared memory

    @property
    def blocks(self) -> int:
        """How many blocks the grid has."""
        return -(-(self.last - self.first) // self.warps)


@dataclass(frozen=True, slots=True)
class Work:
    """Rows in the order in which they start, and the launches that take them."""

    rows: Rows
    launches: tuple[Launch, ...]


def task_bytes(orders: int, worth: int, flags: Flag, lanes: int = LANES) -> int:
    """Bytes of shared memory that carve() of task.cu hands out for one warp; the kernels count the same."""
    size, m = 2 * orders + 2, 2 * orders + 1
    common = _padded(8 * size * size) + _padded(16 * size) + _padded(4 * size) + 32 + 64 + 16
    if Flag.EXACT in flags:
        common += _padded(4 * size * size) + _padded(4 * size)
    if Flag.LEAN in flags:
        return common + 3 * 64 + _padded(8 * size)
    return common + 3 * _padded(m * lanes) + 4 * m * lanes + 2 * m * lanes * WORTH_BYTES[worth] + 16


def _padded(count: int) -> int:
    return -(-count // 16) * 16


def orders_in_hand(batch: Batch) -> Sizes:
    """How many orders each rider holds, uint8 [R]; whatever the offsets say, 0 to ORDERS_MAX."""
    count = batch.hand_start[1:].astype(np.int64) - batch.hand_start[:-1]
    return np.clip(count, 0, ORDERS_MAX).astype(np.uint8)


def orders_of_pairs(batch: Batch) -> Sizes:
    """How many orders each pair may have, uint8 [P], 0 to ORDERS_MAX; where the rider row is out of range, the new."""
    in_hand = np.append(orders_in_hand(batch), np.uint8(0))
    count = in_hand[_known_riders(batch, batch.pairs)]
    for column in (Pair.FIRST, Pair.SECOND):
        count += batch.pairs[:, column] != -1
    return np.minimum(count, np.uint8(ORDERS_MAX))


def riders_of(batch: Batch, pairs: Rows) -> Rows:
    """The rows of the riders that these pairs name, each once; rows out of range left out."""
    named = batch.pairs if len(pairs) == len(batch.pairs) else batch.pairs[pairs]
    used = np.zeros(len(batch.riders) + 1, np.bool_)
    used[_known_riders(batch, named)] = True
    return np.flatnonzero(used[:-1]).astype(np.int32)


def _known_riders(batch: Batch, pairs: NDArray[np.int32]) -> NDArray[np.uint32]:
    """The pairs' rider rows; one past the table stands for all out of range (negative ones are large unsigned ones)."""
    return np.minimum(pairs[:, Pair.RIDER].astype(np.uint32), np.uint32(len(batch.riders)))


def work_for(rows: Rows, orders: Sizes, worth: int, flags: Flag, exact_orders: int) -> Work:
    """Sort rows by size (orders[k] is that of rows[k]), most first, and cut them into launches.

    Tasks of up to exact_orders orders may be searched to the end.
    """
    kinds = _KIND_OF[orders]
    pieces, launches = [rows[:0]], []
    first = 0
    for kind in reversed(range(len(SIZES))):
        piece = rows[kinds == kind]
        if len(piece):
            more = Flag.EXACT if (SIZES[kind - 1] if kind else -1) < exact_orders else Flag(0)
            launches.append(_launch(SIZES[kind], first, first + len(piece), worth, flags | more))
            pieces.append(piece)
            first += len(piece)
    return Work(np.concatenate(pieces), tuple(launches))


def _launch(size: int, first: int, last: int, worth: int, flags: Flag) -> Launch:
    warps = WARPS_LEAN if Flag.LEAN in flags else WARPS
    return Launch(size, first, last, flags, warps, task_bytes(size, worth, flags))


def exact_orders(batch: Batch) -> int:
    """Up to how many orders a task of this batch may have and be searched to the end; -1 where none is.

    A pair with a matrix plans its hand in the same memory: with two new orders it has two more than are searched.
    """
    if batch.options[Option.SOLVER] not in (Solver.EXACT, Solver.AUTO):
        return -1
    return EXACT_ORDERS_AUTO + (2 if len(batch.matrix_start) else 0)


def pair_flags(batch: Batch) -> Flag:
    """The flags of a batch's pairs: insertion into hands that were planned before needs little memory."""
    lean = batch.options[Option.SOLVER] == Solver.INSERT and len(batch.matrix_start) == 0
    return Flag.LEAN if lean else Flag(0)
