"""Walk a planned route: from stop codes and places to legs, arrivals, waits and loads in visiting order.

A planner answers with stop codes (0 the rider's place, order i's pickup 2i+1, its delivery 2i+2);
`features_from_plan` wants stops one after the other. The walk follows the planner's own clock: arrive = leave + leg,
wait at a pickup until the meal is ready, leave after the service time; distance = ceil(detour * straight line), leg
seconds = ceil(distance / speed). It plans nothing and judges nothing. Next: `network.py`, the parameters of the model
that reads the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.etr.features import DELIVERY, PICKUP, Int32, PlannedRoutes, grid_cell

Int64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RouteTasks:
    """B tasks of up to N orders each. Times are seconds from now, places metres on a local plane.

    `place_m` is int32 [B, 2N+1, 2], indexed by stop code; the others are [B, N], indexed by order. An order
    `on_board` was picked up before: its meal is carried from the start and its pickup code does not occur in the
    route.
    """

    place_m: Int32
    ready_s: Int32
    due_s: Int32
    pickup_service_s: Int32
    delivery_service_s: Int32
    load: Int32
    on_board: NDArray[np.bool_]
    is_new: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Travel:
    """How straight metres become seconds."""

    detour: float
    speed_m_per_s: float

    def legs(self, start_m: Int64, stop_m: Int64) -> tuple[Int64, Int64]:
        """Metres and seconds from start to stop, both shaped as the places without their last axis."""
        straight = np.sqrt(((stop_m - start_m) ** 2).sum(axis=-1).astype(np.float64))
        metres = np.ceil(self.detour * straight)
        return metres.astype(np.int64), np.ceil(metres / self.speed_m_per_s).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Stops:
    """What the stop codes of a whole batch say, [B, L] each, before any clock runs."""

    is_pickup: NDArray[np.bool_]
    place: Int64
    ready: Int64
    due: Int64
    service: Int64
    load_change: Int64
    is_new: Int64


def _look_up(codes: Int32, tasks: RouteTasks) -> _Stops:
    code = codes.astype(np.int64)
    order = np.maximum(code - 1, 0) // 2
    is_pickup = code % 2 == 1

    def of_order(values: NDArray[np.generic]) -> Int64:
        return np.take_along_axis(values.astype(np.int64), order, axis=1)

    load = of_order(tasks.load)
    return _Stops(
        is_pickup=is_pickup,
        place=np.take_along_axis(tasks.place_m.astype(np.int64), code[:, :, None], axis=1),
        ready=of_order(tasks.ready_s),
        due=of_order(tasks.due_s),
        service=np.where(is_pickup, of_order(tasks.pickup_service_s), of_order(tasks.delivery_service_s)),
        load_change=np.where(is_pickup, load, -load),
        is_new=of_order(tasks.is_new),
    )


def walk(codes: Int32, stop_count: Int32, tasks: RouteTasks, travel: Travel) -> PlannedRoutes:
    """The stops of each route in visiting order. `codes` is [B, L]; what follows `stop_count[b]` is ignored."""
    pairs, width = codes.shape
    real = np.arange(width) < stop_count[:, None]
    stops = _look_up(np.where(real, codes, 0).astype(np.int32), tasks)
    start = tasks.place_m[:, :1].astype(np.int64)
    before = np.concatenate((start, stops.place[:, :-1]), axis=1)
    leg_m, leg_s = travel.legs(before, stops.place)
    arrive = np.zeros((pairs, width), np.int64)
    wait = np.zeros((pairs, width), np.int64)
    leave = np.zeros(pairs, np.int64)
    for column in range(width):
        arrive[:, column] = leave + leg_s[:, column]
        gap = np.maximum(stops.ready[:, column] - arrive[:, column], 0)
        wait[:, column] = np.where(stops.is_pickup[:, column], gap, 0)
        leave = arrive[:, column] + wait[:, column] + stops.service[:, column]
    carried = (tasks.load * tasks.on_board).sum(axis=1, dtype=np.int64)

    def kept(values: Int64) -> Int32:
        return np.where(real, values, 0).astype(np.int32)

    return PlannedRoutes(
        stop_count=stop_count.astype(np.int32),
        stop_type=kept(np.where(stops.is_pickup, PICKUP, DELIVERY).astype(np.int64)),
        stop_grid=kept(grid_cell(stops.place[:, :, 0], stops.place[:, :, 1]).astype(np.int64)),
        leg_m=kept(leg_m),
        leg_s=kept(leg_s),
        arrive_s=kept(arrive),
        wait_s=kept(wait),
        service_s=kept(stops.service),
        ready_s=kept(stops.ready),
        due_s=kept(stops.due),
        load=kept(carried[:, None] + np.cumsum(np.where(real, stops.load_change, 0), axis=1)),
        is_new=kept(stops.is_new),
        dx_m=kept(stops.place[:, :, 0] - start[:, :, 0]),
        dy_m=kept(stops.place[:, :, 1] - start[:, :, 1]),
    )
