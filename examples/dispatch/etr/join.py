"""From route_plan's request and answer to the tensors of `etr`: the second half of a dispatch round starts here.

The answer says in which order each pair's stops are visited; this module walks them as the planner did, to the
second, and adds what a route request does not hold (`RoundFacts`). Pairs without a route get no stops, hence answers
of 0 minutes: read their status first. It plans nothing, calls nothing, and is the only file here that knows
route_plan. Next: `features.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from examples.dispatch.etr.features import STOPS_MAX, PairContext, PlannedRoutes, features_from_plan, grid_cell
from examples.dispatch.etr.plan import Legs, RouteTasks, legs_by_place, walk
from examples.dispatch.route_plan.layout import NO_STOP, ORDERS_MAX, Option, Order, Pair, Rider, Status
from examples.dispatch.route_plan.layout import STOPS_MAX as PLAN_STOPS_MAX

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from examples.dispatch.etr.features import EtrInputs, Float32, Int32
    from examples.dispatch.route_plan.contract import Answer, Batch

    Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RoundFacts:
    """What a dispatcher knows beside the route request. R riders and M orders, in the rows of the request's tables.

    Times are minutes; `minute_of_week` counts from Monday 00:00, at the moment of the round.
    """

    minute_of_week: int
    now_s: int  # the moment of the round on the request's own clock
    weather: int
    rider_speed_m_per_min: Float32  # [R], over the last hour
    rider_level: Float32  # [R]
    shop: Int32  # [M]
    area: Int32  # [M]
    placed_s: Int32  # [M], on the request's clock
    prep_mean_min: Float32  # [M]
    prep_spread_min: Float32  # [M]
    riders_per_order: Float32  # [M], in the order's area
    orders_waiting: Float32  # [M], likewise


@dataclass(frozen=True, slots=True)
class _Joined:
    """Rows of the request's tables for each pair; one row of zeros stands behind each table for what is missing."""

    riders: Rows  # [P, columns]
    orders: Rows  # [P, ORDERS_MAX, columns], in local order: in hand, then new
    new_row: Rows  # [P], order table row of the first new order
    in_hand: Rows  # [P]
    count: Rows  # [P], orders of the pair


def _join(batch: Batch) -> _Joined:
    riders = np.vstack((batch.riders, np.zeros((1, len(Rider)), np.int64)))
    orders = np.vstack((batch.orders, np.zeros((1, len(Order)), np.int64)))
    none = len(batch.orders)
    asked = batch.pairs[:, Pair.RIDER].astype(np.int64)
    rider = np.where((asked >= 0) & (asked < len(batch.riders)), asked, len(batch.riders))
    starts = np.append(batch.hand_start.astype(np.int64), batch.hand_start[-1:])
    in_hand = np.clip(starts[rider + 1] - starts[rider], 0, ORDERS_MAX)
    place = np.arange(ORDERS_MAX)
    held = np.append(batch.hand.astype(np.int64), none)
    of_hand = held[np.clip(starts[rider][:, None] + place, 0, len(batch.hand))]
    rows = np.where(place < in_hand[:, None], of_hand, none)
    count = in_hand.copy()
    pair = np.arange(len(rows))
    for column in (Pair.FIRST, Pair.SECOND):
        new = batch.pairs[:, column].astype(np.int64)
        fits = (new >= 0) & (count < ORDERS_MAX)
        rows[pair[fits], count[fits]] = new[fits]
        count = count + fits
    first = batch.pairs[:, Pair.FIRST].astype(np.int64)
    new_row = np.where(first >= 0, first, rows[:, 0])
    rows, new_row = (np.where((row >= 0) & (row < none), row, none) for row in (rows, new_row))
    return _Joined(riders[rider], orders[rows], new_row, in_hand, count)


def _tasks(joined: _Joined) -> RouteTasks:
    """The pairs as tasks whose clock starts when the rider is free."""
    orders = joined.orders
    free_s = joined.riders[:, Rider.START, None]
    place = np.zeros((len(orders), 2 * ORDERS_MAX + 1, 2), np.int32)
    place[:, 0] = joined.riders[:, Rider.X : Rider.Y + 1]
    place[:, 1::2] = orders[:, :, Order.PICKUP_X : Order.PICKUP_Y + 1]
    place[:, 2::2] = orders[:, :, Order.DELIVERY_X : Order.DELIVERY_Y + 1]
    local = np.arange(ORDERS_MAX)
    exists = local < joined.count[:, None]
    return RouteTasks(
        place_m=place,
        ready_s=(orders[:, :, Order.READY] - free_s).astype(np.int32),
        due_s=(orders[:, :, Order.DUE] - free_s).astype(np.int32),
        pickup_service_s=orders[:, :, Order.PICKUP_S].astype(np.int32),
        delivery_service_s=orders[:, :, Order.DELIVERY_S].astype(np.int32),
        load=orders[:, :, Order.LOAD].astype(np.int32),
        on_board=exists & (orders[:, :, Order.ON_BOARD] == 1),
        is_new=exists & (local >= joined.in_hand[:, None]),
    )


def _legs_by_matrix(batch: Batch, joined: _Joined, codes: Rows, stop_count: Rows) -> Legs:
    size = 2 * joined.count + 1 + joined.riders[:, Rider.HAS_END]
    before = np.concatenate((np.zeros_like(codes[:, :1]), codes[:, :-1]), axis=1)
    cell = batch.matrix_start[:-1, None] + before * size[:, None] + codes
    real = np.arange(codes.shape[1]) < stop_count[:, None]
    cell = np.where(real, cell, 0)
    return Legs(*(np.where(real, table[cell], 0).astype(np.int64) for table in (batch.metres, batch.seconds)))


def routes_of(batch: Batch, answer: Answer) -> PlannedRoutes:
    """The answered routes, walked: [P, 16], or [P, 32] where one is longer. Times count from when the rider is free."""
    return _routes(batch, answer, _join(batch))


def _routes(batch: Batch, answer: Answer, joined: _Joined) -> PlannedRoutes:
    stop_count = np.where(answer.status == Status.OK, (answer.stops != NO_STOP).sum(axis=1), 0).astype(np.int32)
    width = STOPS_MAX if stop_count.max(initial=0) <= STOPS_MAX else PLAN_STOPS_MAX
    codes = answer.stops[:, :width].astype(np.int32)
    tasks = _tasks(joined)
    if len(batch.matrix_start) > 1:
        legs = _legs_by_matrix(batch, joined, codes.astype(np.int64), stop_count.astype(np.int64))
    else:
        speed = np.maximum(joined.riders[:, Rider.SPEED], 1)
        legs = legs_by_place(codes, stop_count, tasks.place_m, int(batch.options[Option.DETOUR_PERMILLE]), speed)
    return walk(codes, stop_count, tasks, legs)


def inputs_of(batch: Batch, answer: Answer, facts: RoundFacts) -> EtrInputs:
    """The tensors of `etr` for every pair of a route_plan request, in its order."""
    joined = _join(batch)
    routes = _routes(batch, answer, joined)
    return features_from_plan(routes, _context(batch, answer, facts, joined, routes))


def _context(batch: Batch, answer: Answer, facts: RoundFacts, joined: _Joined, routes: PlannedRoutes) -> PairContext:
    orders = np.vstack((batch.orders, np.zeros((1, len(Order)), np.int64)))[joined.new_row]
    pickup = orders[:, Order.PICKUP_X : Order.PICKUP_Y + 1]
    delivery = orders[:, Order.DELIVERY_X : Order.DELIVERY_Y + 1]
    here = joined.riders[:, Rider.X : Rider.Y + 1]
    asked = batch.pairs[:, Pair.RIDER]
    with_order = routes.leg_m.sum(axis=1, dtype=np.int64)
    without = with_order - np.where(answer.status == Status.OK, answer.delta_metres, 0)

    def of_order(values: Int32 | Float32) -> NDArray[np.float64]:
        return np.append(values, 0).astype(np.float64)[joined.new_row]

    def of_rider(values: Float32) -> Float32:
        row = np.where((asked >= 0) & (asked < len(values)), asked, len(values))
        known: Float32 = np.append(values, np.float32(0)).astype(np.float32)[row]
        return known

    def metres(a: Rows, b: Rows) -> Float32:
        away: Float32 = np.hypot(*(a - b).T.astype(np.float64)).astype(np.float32)
        return away

    return PairContext(
        rider=joined.riders[:, Rider.ID].astype(np.int32),
        shop=of_order(facts.shop).astype(np.int32),
        pickup_grid=grid_cell(pickup[:, 0], pickup[:, 1]),
        delivery_grid=grid_cell(delivery[:, 0], delivery[:, 1]),
        minute_of_week=np.full(len(asked), facts.minute_of_week, np.int32),
        weather=np.full(len(asked), facts.weather, np.int32),
        area=of_order(facts.area).astype(np.int32),
        riders_per_order=of_order(facts.riders_per_order).astype(np.float32),
        orders_in_hand=joined.in_hand.astype(np.float32),
        rider_speed_m_per_min=of_rider(facts.rider_speed_m_per_min),
        rider_level=of_rider(facts.rider_level),
        prep_mean_min=of_order(facts.prep_mean_min).astype(np.float32),
        prep_spread_min=of_order(facts.prep_spread_min).astype(np.float32),
        straight_m=metres(pickup, delivery),
        detour_ratio=np.where(without > 0, with_order / np.maximum(without, 1), 1.0).astype(np.float32),
        since_placed_min=((facts.now_s - of_order(facts.placed_s)) / 60.0).astype(np.float32),
        to_due_min=((orders[:, Order.DUE] - facts.now_s) / 60.0).astype(np.float32),
        to_pickup_m=metres(here, pickup),
        orders_waiting=of_order(facts.orders_waiting).astype(np.float32),
    )
