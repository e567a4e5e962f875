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
class Legs:
    """The way to each stop from the one before it, int64 [B, L]; what stands in padded places is ignored."""

    metres: Int64
    seconds: Int64


def legs_by_place(
    codes: Int32, stop_count: Int32, place_m: Int32, detour_permille: int, speed_m_per_min: NDArray[np.integer]
) -> Legs:
    """Legs from coordinates, as route planning has them: metres = ceil(detour * straight), seconds rounded up too.

    codes [B, L], stop_count [B], place_m [B, 2N+1, 2] by stop code, speed [B] of each task's rider, at least 1.
    """
    code = _real_codes(codes, stop_count)
    stop = np.take_along_axis(place_m.astype(np.int64), code[:, :, None], axis=1)
    before = np.concatenate((place_m[:, :1].astype(np.int64), stop[:, :-1]), axis=1)[:, : code.shape[1]]
    straight = np.sqrt(((stop - before) ** 2).sum(axis=-1).astype(np.float64))
    metres = np.ceil(detour_permille / 1000.0 * straight).astype(np.int64)
    return Legs(metres, -np.floor_divide(-60 * metres, speed_m_per_min[:, None].astype(np.int64)))


def _real_codes(codes: NDArray[np.integer], stop_count: Int32) -> Int64:
    """Codes with 0, the rider's own place, wherever the route has ended."""
    real = np.arange(codes.shape[1]) < stop_count[:, None]
    return np.where(real, codes, 0).astype(np.int64)


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


def _look_up(code: Int64, tasks: RouteTasks) -> _Stops:
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


def walk(codes: Int32, stop_count: Int32, tasks: RouteTasks, legs: Legs) -> PlannedRoutes:
    """The stops of each route in visiting order. `codes` is [B, L]; what follows `stop_count[b]` is ignored."""
    pairs, width = codes.shape
    real = np.arange(width) < stop_count[:, None]
    stops = _look_up(_real_codes(codes, stop_count), tasks)
    start = tasks.place_m[:, :1].astype(np.int64)
    arrive = np.zeros((pairs, width), np.int64)
    wait = np.zeros((pairs, width), np.int64)
    leave = np.zeros(pairs, np.int64)
    for column in range(width):
        arrive[:, column] = leave + legs.seconds[:, column]
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
        leg_m=kept(legs.metres),
        leg_s=kept(legs.seconds),
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
