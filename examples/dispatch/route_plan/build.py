"""Put single tasks together into one batch: ragged tables from a list of values.

It is for callers that think in tasks (data sets, tests, one dispatcher); a city round builds its tables at once. It
never checks what the planner checks. Next: contract.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.contract import Batch, Options
from examples.dispatch.route_plan.layout import INT32_MAX, Order, Rider

NOBODY = -1


@dataclass(frozen=True, slots=True)
class RiderRow:
    """One rider; see layout.Rider for the units. end is the place of an end stop, or None for an open route."""

    number: int = 0
    x: int = 0
    y: int = 0
    start: int = 0
    capacity: int = INT32_MAX
    speed: int = 320
    end: tuple[int, int] | None = None
    end_due: int = INT32_MAX

    def columns(self) -> list[int]:
        """Return the row of the rider table."""
        end = self.end or (0, 0)
        has_end = int(self.end is not None)
        return [self.number, self.x, self.y, self.start, self.capacity, self.speed, has_end, *end, self.end_due]


@dataclass(frozen=True, slots=True)
class OrderRow:
    """One order; see layout.Order for the units."""

    pickup: tuple[int, int] = (0, 0)
    delivery: tuple[int, int] = (0, 0)
    ready: int = 0
    due: int = INT32_MAX
    pickup_s: int = 0
    delivery_s: int = 0
    load: int = 0
    weight: int = 1
    on_board: bool = False
    pickup_due: int = INT32_MAX
    delivery_ready: int = 0

    def columns(self) -> list[int]:
        """Return the row of the order table."""
        times = [self.ready, self.due, self.pickup_s, self.delivery_s]
        last = [self.load, self.weight, int(self.on_board), self.pickup_due, self.delivery_ready]
        return [*self.pickup, *self.delivery, *times, *last]


@dataclass(frozen=True, slots=True)
class Task:
    """One pair: a rider, the orders in hand, their route (empty: to be made), new orders, matrices or none."""

    rider: RiderRow
    hand: tuple[OrderRow, ...]
    new: tuple[OrderRow, ...] = ()
    route: tuple[int, ...] = ()
    number: int = 0
    seconds: NDArray[Any] | None = field(default=None, compare=False)
    metres: NDArray[Any] | None = field(default=None, compare=False)


def build_batch(tasks: Sequence[Task], options: Options) -> Batch:
    """Build a batch with one rider a task. Matrix mode if the first task has matrices, then all must have them."""
    riders: list[list[int]] = []
    orders: list[list[int]] = []
    pairs: list[list[int]] = []
    hand: list[int] = []
    route: list[int] = []
    hand_start, route_start, matrix_start = [0], [0], [0]
    seconds: list[NDArray[np.int32]] = []
    metres: list[NDArray[np.int32]] = []
    for place, task in enumerate(tasks):
        riders.append(task.rider.columns())
        hand.extend(range(len(orders), len(orders) + len(task.hand)))
        orders.extend(order.columns() for order in task.hand)
        fresh = [len(orders) + k for k in range(len(task.new))] + [NOBODY] * (2 - len(task.new))
        orders.extend(order.columns() for order in task.new)
        route.extend(task.route)
        hand_start.append(len(hand))
        route_start.append(len(route))
        pairs.append([place, *fresh, task.number])
        if task.seconds is not None and task.metres is not None:
            seconds.append(np.asarray(task.seconds, np.int32).ravel())
            metres.append(np.asarray(task.metres, np.int32).ravel())
            matrix_start.append(matrix_start[-1] + seconds[-1].size)
    by_matrix = bool(seconds)
    return Batch.from_tensors(
        {
            "riders": np.array(riders, np.int32).reshape(-1, len(Rider)),
            "orders": np.array(orders, np.int32).reshape(-1, len(Order)),
            "hand_start": np.array(hand_start, np.int32),
            "hand": np.array(hand, np.int32),
            "route_start": np.array(route_start, np.int32),
            "route": np.array(route, np.uint8),
            "pairs": np.array(pairs, np.int32).reshape(-1, 4),
            "matrix_start": np.array(matrix_start if by_matrix else [], np.int64),
            "seconds": np.concatenate(seconds) if by_matrix else np.zeros(0, np.int32),
            "metres": np.concatenate(metres) if by_matrix else np.zeros(0, np.int32),
            "options": options.tensor(),
        }
    )
