"""The contract between a planned route and the tensors of `etr`: names, order and units of every input.

Tensors of one request, B pairs and L stop columns (16 as shipped, any L from 1 to 32 works):

    ids        int32   [B, 7]      IDS below; any int32 is safe, the graph takes it modulo its bucket count
    dense      float32 [B, 16]     DENSE below, raw units; the graph normalises
    stops      float32 [B, L, 14]  STOPS below, raw units, in visiting order
    stop_type  int32   [B, L]      PADDING, PICKUP or DELIVERY
    stop_grid  int32   [B, L]      `grid_cell` of the stop; any int32 is safe
    mask       float32 [B, L]      1 for a real stop, 0 for padding; padding stands at the end of a row

The answer is arrival_min, float32 [B, L]: minutes from now until the rider reaches each stop, never decreasing along a
row; a padded stop repeats the last real one.

What stands in a padded stop is never read. NaN and infinity are not features: the model asks its node to refuse them
(`refuse_nan`), and a caller without a node calls `check_finite`. Next: `plan.py`, which walks a route to make
PlannedRoutes, and `join.py`, which does so for route_plan's answers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Int32 = NDArray[np.int32]
Float32 = NDArray[np.float32]

PADDING, PICKUP, DELIVERY = 0, 1, 2
STOPS_MAX = 16
GRID_CELL_M = 250

IDS = ("rider", "shop", "pickup_grid", "delivery_grid", "half_hour_of_week", "weather", "area")
ID_BUCKETS = (4096, 8192, 8192, 8192, 336, 8, 1024)
STOP_GRID_BUCKETS = 8192

DENSE = (
    "riders_per_order",  # in the order's area, ratio
    "orders_in_hand",  # of the rider before this order, count
    "rider_speed_m_per_min",  # over the rider's last hour
    "rider_level",  # 0 (new) to 5
    "prep_mean_min",  # the shop's estimate of cooking time
    "prep_spread_min",  # its standard deviation
    "straight_m",  # new order's pickup to delivery, as the crow flies
    "detour_ratio",  # route metres with the order over those without it, 1 where there was no route
    "since_placed_min",  # age of the new order
    "to_due_min",  # from now to its promise; negative when late
    "to_pickup_m",  # rider to the new order's pickup, as the crow flies
    "hour_sin",  # of the day, 24 h = one turn
    "hour_cos",
    "orders_waiting",  # unassigned in the area, count
    "plan_finish_min",  # the plan's arrival at its last stop
    "plan_distance_m",  # the plan's whole length
)
STOPS = (
    "leg_m",  # from the previous stop, metres
    "leg_s",  # the same, seconds
    "plan_arrival_min",  # from now
    "wait_before_min",  # planned wait for the meal at the previous stop
    "slack_min",  # promise minus planned arrival
    "ready_gap_min",  # planned arrival minus the time the meal is ready; 0 where nothing is picked up
    "load",  # on the bike when leaving the stop
    "position",  # 1 for the first stop
    "is_new",  # 1 where the stop belongs to the hypothetical order
    "dx_m",  # east of the rider's place now
    "dy_m",  # north of it
    "distance_m",  # cumulative metres
    "remaining",  # stops still to come after this one
    "service_before_min",  # planned service at the previous stop; leg, wait and service add up to the step
)


class NotFinite(ValueError):
    """An input holds NaN or infinity; fill in or drop the row."""


@dataclass(frozen=True, slots=True)
class EtrInputs:
    """The six tensors of one request, named as the model names them."""

    ids: Int32
    dense: Float32
    stops: Float32
    stop_type: Int32
    stop_grid: Int32
    mask: Float32

    @property
    def pairs(self) -> int:
        """B, the number of rider-order pairs."""
        return int(self.ids.shape[0])

    def rows(self, pick: slice | NDArray[np.intp]) -> EtrInputs:
        """The same tensors for some of the pairs."""
        return EtrInputs(
            self.ids[pick],
            self.dense[pick],
            self.stops[pick],
            self.stop_type[pick],
            self.stop_grid[pick],
            self.mask[pick],
        )

    def trimmed(self) -> EtrInputs:
        """The same pairs without the columns that are padding in every row; answers are the same, sooner."""
        width = max(int(self.mask.sum(axis=1).max(initial=1.0)), 1)
        return EtrInputs(
            self.ids,
            self.dense,
            self.stops[:, :width],
            self.stop_type[:, :width],
            self.stop_grid[:, :width],
            self.mask[:, :width],
        )


@dataclass(frozen=True, slots=True)
class PlannedRoutes:
    """What the planner answered, stop by stop in visiting order; int32 [B, L], but `stop_count` [B].

    The first `stop_count[b]` columns of row b are real.
    Times are seconds from now, places metres on a local plane relative to the rider's place now.
    """

    stop_count: Int32
    stop_type: Int32
    stop_grid: Int32
    leg_m: Int32
    leg_s: Int32
    arrive_s: Int32
    wait_s: Int32
    service_s: Int32
    ready_s: Int32
    due_s: Int32
    load: Int32
    is_new: Int32
    dx_m: Int32
    dy_m: Int32


@dataclass(frozen=True, slots=True)
class PairContext:
    """What is known of each pair beside its route; one value per pair, shape [B]."""

    rider: Int32
    shop: Int32
    pickup_grid: Int32
    delivery_grid: Int32
    minute_of_week: Int32  # from Monday 00:00
    weather: Int32
    area: Int32
    riders_per_order: Float32
    orders_in_hand: Float32
    rider_speed_m_per_min: Float32
    rider_level: Float32
    prep_mean_min: Float32
    prep_spread_min: Float32
    straight_m: Float32
    detour_ratio: Float32
    since_placed_min: Float32
    to_due_min: Float32
    to_pickup_m: Float32
    orders_waiting: Float32


def grid_cell(x_m: NDArray[np.integer], y_m: NDArray[np.integer]) -> Int32:
    """The cell of a place: unique within 32 km by 16 km, repeated beyond (128 x 64 cells fill the table)."""
    column = np.floor_divide(x_m, GRID_CELL_M).astype(np.int64) & 127
    row = np.floor_divide(y_m, GRID_CELL_M).astype(np.int64) & 63
    cell: Int32 = (row << 7 | column).astype(np.int32)
    return cell


def features_from_plan(routes: PlannedRoutes, context: PairContext) -> EtrInputs:
    """Turn planned routes [B, L] and their context [B] into the model's tensors; rows keep their order."""
    width = routes.stop_type.shape[1]
    column = np.arange(width, dtype=np.int32)
    real = column < routes.stop_count[:, None]
    distance_m = np.cumsum(np.where(real, routes.leg_m, 0), axis=1)
    stops = np.stack(
        (
            routes.leg_m,
            routes.leg_s,
            routes.arrive_s / 60.0,
            _of_previous(routes.wait_s) / 60.0,
            (routes.due_s - routes.arrive_s) / 60.0,
            np.where(routes.stop_type == PICKUP, routes.arrive_s - routes.ready_s, 0) / 60.0,
            routes.load,
            np.broadcast_to(column + 1, real.shape),
            routes.is_new,
            routes.dx_m,
            routes.dy_m,
            distance_m,
            routes.stop_count[:, None] - column - 1,
            _of_previous(routes.service_s) / 60.0,
        ),
        axis=2,
    )
    finish_min = np.where(real, routes.arrive_s, 0).max(axis=1, initial=0) / 60.0
    return EtrInputs(
        ids=_ids(context),
        dense=_dense(context, finish_min, distance_m[:, -1] if width else np.zeros(len(real))),
        stops=np.where(real[:, :, None], stops, 0.0).astype(np.float32),
        stop_type=np.where(real, routes.stop_type, PADDING).astype(np.int32),
        stop_grid=np.where(real, routes.stop_grid, 0).astype(np.int32),
        mask=real.astype(np.float32),
    )


def _of_previous(values: Int32) -> Int32:
    """Each stop's value moved to the stop after it; what follows the last stop never reaches an arrival."""
    shifted = np.zeros_like(values)
    shifted[:, 1:] = values[:, :-1]
    return shifted


def _ids(context: PairContext) -> Int32:
    half_hour = np.floor_divide(context.minute_of_week, 30) % 336
    columns = (
        context.rider,
        context.shop,
        context.pickup_grid,
        context.delivery_grid,
        half_hour,
        context.weather,
        context.area,
    )
    return np.stack(columns, axis=1).astype(np.int32)


def _dense(context: PairContext, finish_min: NDArray[np.float64], distance_m: NDArray[np.float64]) -> Float32:
    turn = context.minute_of_week * (2.0 * np.pi / 1440.0)
    columns = (
        context.riders_per_order,
        context.orders_in_hand,
        context.rider_speed_m_per_min,
        context.rider_level,
        context.prep_mean_min,
        context.prep_spread_min,
        context.straight_m,
        context.detour_ratio,
        context.since_placed_min,
        context.to_due_min,
        context.to_pickup_m,
        np.sin(turn),
        np.cos(turn),
        context.orders_waiting,
        finish_min,
        distance_m,
    )
    return np.stack(columns, axis=1).astype(np.float32)


def check_finite(inputs: EtrInputs) -> None:
    """Raise NotFinite for NaN or infinity in the float tensors, naming the first bad row."""
    for name, tensor in (("dense", inputs.dense), ("stops", inputs.stops), ("mask", inputs.mask)):
        bad = ~np.isfinite(tensor).reshape(len(tensor), -1).all(axis=1)
        if bad.any():
            row = int(np.argmax(bad))
            raise NotFinite(f"Input {name} of etr holds NaN or infinity in row {row}: fill it in or drop the row.")
