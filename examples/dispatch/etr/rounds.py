"""Simulated rounds: routes in a made-up city with a known truth, for a network whose real rows nobody may ship.

Everything here is SIMULATED. The planner's clock gives the plan; the truth walks the same route with every leg
multiplied by the rider's pace, the traffic of the hour, the weather and lognormal noise, and with each shop's own
delay before a meal is handed over. The network sees the plan and the ids, never the factors. Accuracy measured on
such rounds says that the network recovers what was put in, nothing about couriers. All numbers come from one seed.
Next: `train.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.etr.features import (
    DELIVERY,
    PICKUP,
    STOPS_MAX,
    EtrInputs,
    Float32,
    Int32,
    PairContext,
    PlannedRoutes,
    features_from_plan,
    grid_cell,
)
from examples.dispatch.etr.plan import RouteTasks, legs_by_place, walk

Float64 = NDArray[np.float64]

CITY_SEED = 20240321
RIDERS, SHOPS, AREAS = 2585, 1200, 64  # riders of a mean lunch round; shops and areas are our choice
CITY_M = 12_000
ORDERS_MAX = STOPS_MAX // 2
# 320 m/min, 4 + 4 minutes of service, ready 15 min (median) and 30 min (p90) after placing, promise 40 min after
# placing: the parameters published with the mdrplib instances.
DETOUR_PERMILLE, SPEED_M_PER_MIN = 1300, 320
SERVICE_S = 240
PROMISE_S = 40 * 60
READY_MEDIAN_S, READY_SIGMA = 15 * 60, np.log(2.0) / 1.2816
LEG_SIGMA, RIDER_SIGMA = 0.20, 0.15
WEATHER_FACTOR = np.array([1.0, 1.02, 1.05, 1.1, 1.2, 1.35, 1.5, 1.0])


@dataclass(frozen=True, slots=True)
class City:
    """The hidden truth of a simulated city: who is fast and which shops keep riders waiting."""

    rider_pace: Float64  # leg seconds multiply by it, 1 is the plan
    rider_level: Int32
    shop_m: NDArray[np.int64]  # [SHOPS, 2]
    shop_delay_s: Float64
    shop_area: Int32


@dataclass(frozen=True, slots=True)
class Rounds:
    """Simulated pairs: the model's tensors, the plan's own answer and the simulated truth, minutes, float32 [B, L]."""

    inputs: EtrInputs
    planned_min: Float32
    true_min: Float32
    is_delivery: NDArray[np.bool_]

    def rows(self, pick: slice | NDArray[np.intp]) -> Rounds:
        """The same for some of the pairs."""
        return Rounds(self.inputs.rows(pick), self.planned_min[pick], self.true_min[pick], self.is_delivery[pick])


def make_city(seed: int = CITY_SEED) -> City:
    """The city that training and test rounds share."""
    rng = np.random.default_rng(seed)
    shop_m = rng.integers(0, CITY_M, (SHOPS, 2))
    side = int(np.sqrt(AREAS))
    cell = shop_m * side // CITY_M
    return City(
        rider_pace=np.exp(rng.normal(0.0, RIDER_SIGMA, RIDERS)),
        rider_level=rng.integers(0, 6, RIDERS).astype(np.int32),
        shop_m=shop_m,
        shop_delay_s=rng.gamma(2.0, 120.0, SHOPS),  # four minutes on average, a tail beyond ten
        shop_area=(cell[:, 1] * side + cell[:, 0]).astype(np.int32),
    )


@dataclass(frozen=True, slots=True)
class _Draw:
    """One batch of pairs before planning; [B] and [B, N] arrays."""

    rider: NDArray[np.int64]
    minute_of_week: NDArray[np.int64]
    weather: NDArray[np.int64]
    orders: NDArray[np.int64]
    shop: NDArray[np.int64]
    placed_s: NDArray[np.int64]
    tasks: RouteTasks


def _draw(city: City, rng: np.random.Generator, pairs: int) -> _Draw:
    orders = np.minimum(
        rng.choice([1, 2, 3, 4, 5, 6, 7, 8], pairs, p=[0.18, 0.24, 0.22, 0.16, 0.1, 0.05, 0.03, 0.02]), ORDERS_MAX
    )
    rider_m = rng.integers(0, CITY_M, (pairs, 2))
    # A rider's orders come from shops near each other: the best of a few draws by distance to the rider.
    tries = rng.integers(0, SHOPS, (pairs, ORDERS_MAX, 48))
    away = np.abs(city.shop_m[tries] - rider_m[:, None, None]).sum(axis=-1)
    shop = np.take_along_axis(tries, away.argmin(axis=2)[:, :, None], axis=2)[:, :, 0]
    shop_m = city.shop_m[shop]
    home_m = np.clip(shop_m + rng.normal(0.0, 1200.0, shop_m.shape).astype(np.int64), 0, CITY_M)
    placed = -np.floor(rng.exponential(600.0, shop.shape)).astype(np.int64)
    ready = placed + np.exp(np.log(READY_MEDIAN_S) + rng.normal(0.0, READY_SIGMA, shop.shape)).astype(np.int64)
    place = np.zeros((pairs, 2 * ORDERS_MAX + 1, 2), np.int32)
    place[:, 0], place[:, 1::2], place[:, 2::2] = rider_m, shop_m, home_m
    exists = np.arange(ORDERS_MAX) < orders[:, None]
    is_new = np.arange(ORDERS_MAX) == orders[:, None] - 1
    on_board = exists & ~is_new & (ready < 0) & (rng.random(shop.shape) < 0.7)
    service = rng.integers(SERVICE_S - 60, SERVICE_S + 61, shop.shape).astype(np.int32)
    tasks = RouteTasks(
        place_m=place,
        ready_s=ready.astype(np.int32),
        due_s=(placed + PROMISE_S).astype(np.int32),
        pickup_service_s=service,
        delivery_service_s=service,
        load=exists.astype(np.int32),
        on_board=on_board,
        is_new=is_new,
    )
    hour = np.clip(
        np.where(rng.random(pairs) < 0.55, rng.normal(12.0, 1.3, pairs), rng.normal(18.5, 1.8, pairs)), 8, 23
    )
    minute = rng.integers(0, 7, pairs) * 1440 + (hour * 60).astype(np.int64)
    weather = rng.choice(7, pairs, p=[0.4, 0.2, 0.15, 0.1, 0.08, 0.05, 0.02])
    return _Draw(rng.integers(0, RIDERS, pairs), minute, weather, orders, shop, placed, tasks)


def _nearest_next(tasks: RouteTasks, orders: NDArray[np.int64]) -> tuple[Int32, Int32]:
    """A plausible route for every task: always the nearest stop that may come next. Codes [B, L], counts [B]."""
    pairs, places, _ = tasks.place_m.shape
    order = (np.arange(places) - 1) // 2
    exists = (order >= 0) & (order < orders[:, None])
    carried = np.repeat(tasks.on_board, 2, axis=1)
    may_pick = np.concatenate((np.zeros((pairs, 1), bool), ~carried), axis=1) & exists & (np.arange(places) % 2 == 1)
    may_drop = np.concatenate((np.zeros((pairs, 1), bool), carried), axis=1) & exists & (np.arange(places) % 2 == 0)
    codes = np.zeros((pairs, STOPS_MAX), np.int32)
    row = np.arange(pairs)
    here = tasks.place_m[:, 0].astype(np.int64)
    count = (may_pick.sum(axis=1) * 2 + may_drop.sum(axis=1)).astype(np.int32)
    for column in range(STOPS_MAX):
        away = np.abs(tasks.place_m - here[:, None]).sum(axis=2).astype(np.float64)
        best = np.where(may_pick | may_drop, away, np.inf).argmin(axis=1)
        live = column < count
        codes[live, column] = best[live]
        picked = live & (best % 2 == 1)
        may_drop[row[picked], best[picked] + 1] = True
        may_pick[row[live], best[live]] = False
        may_drop[row[live & ~picked], best[live & ~picked]] = False
        here = np.where(live[:, None], tasks.place_m[row, best], here)
    return codes, count


def _traffic(minute_of_week: NDArray[np.int64]) -> Float64:
    """Slower around noon and in the evening, more so on working days."""
    hour = (minute_of_week % 1440) / 60.0
    rush = 0.25 * np.exp(-(((hour - 12.0) / 1.2) ** 2)) + 0.35 * np.exp(-(((hour - 18.2) / 1.4) ** 2))
    traffic: Float64 = 1.0 + rush * np.where(minute_of_week >= 5 * 1440, 0.6, 1.0)
    return traffic


def _truth(city: City, planned: _Planned, rng: np.random.Generator) -> Float32:
    """Walk the planned stops with the true factors; minutes [B, L], a padded stop repeats the last real one."""
    draw, routes = planned.draw, planned.routes
    pairs, width = planned.codes.shape
    shop = np.take_along_axis(draw.shop, np.maximum(planned.codes.astype(np.int64) - 1, 0) // 2, axis=1)
    is_pickup = routes.stop_type == PICKUP
    pace = city.rider_pace[draw.rider] * _traffic(draw.minute_of_week) * WEATHER_FACTOR[draw.weather]
    leg = routes.leg_s * pace[:, None] * np.exp(rng.normal(-(LEG_SIGMA**2) / 2, LEG_SIGMA, (pairs, width)))
    delay = city.shop_delay_s[shop] * np.exp(rng.normal(-0.08, 0.4, (pairs, width)))
    service = routes.service_s * np.exp(rng.normal(-0.02, 0.2, (pairs, width)))
    arrive = np.zeros((pairs, width))
    now = np.zeros(pairs)
    for column in range(width):
        real = column < routes.stop_count
        reached = now + leg[:, column]
        begin = np.where(
            is_pickup[:, column], np.maximum(reached, routes.ready_s[:, column]) + delay[:, column], reached
        )
        arrive[:, column] = np.where(real, reached, arrive[:, max(column - 1, 0)])
        now = np.where(real, begin + service[:, column], now)
    return (arrive / 60.0).astype(np.float32)


def _context(city: City, draw: _Draw, rng: np.random.Generator) -> PairContext:
    pairs = len(draw.rider)
    row = np.arange(pairs)
    new = draw.orders - 1
    pickup, delivery = (draw.tasks.place_m[row, code].astype(np.int64) for code in (2 * new + 1, 2 * new + 2))
    shop = draw.shop[row, new]

    def away(a: NDArray[np.int64], b: NDArray[np.int64]) -> Float32:
        metres: Float32 = np.sqrt(((a - b) ** 2).sum(axis=1)).astype(np.float32)
        return metres

    def noisy(centre: Float64, sigma: float) -> Float32:
        return (centre * np.exp(rng.normal(0.0, sigma, pairs))).astype(np.float32)

    straight = away(pickup, delivery)
    waiting = rng.gamma(3.0, 4.0, pairs)
    return PairContext(
        rider=draw.rider.astype(np.int32),
        shop=shop.astype(np.int32),
        pickup_grid=grid_cell(pickup[:, 0], pickup[:, 1]),
        delivery_grid=grid_cell(delivery[:, 0], delivery[:, 1]),
        minute_of_week=draw.minute_of_week.astype(np.int32),
        weather=draw.weather.astype(np.int32),
        area=city.shop_area[shop],
        riders_per_order=noisy(np.full(pairs, RIDERS / 663), 0.4),  # 663 orders in a mean lunch round
        orders_in_hand=new.astype(np.float32),
        rider_speed_m_per_min=noisy(SPEED_M_PER_MIN / city.rider_pace[draw.rider], 0.15),
        rider_level=city.rider_level[draw.rider].astype(np.float32),
        prep_mean_min=noisy(READY_MEDIAN_S / 60 + city.shop_delay_s[shop] / 60, 0.3),
        prep_spread_min=noisy(city.shop_delay_s[shop] / 120, 0.3),
        straight_m=straight,
        detour_ratio=noisy(np.full(pairs, 1.3), 0.2),
        since_placed_min=(-draw.placed_s[row, new] / 60.0).astype(np.float32),
        to_due_min=(draw.tasks.due_s[row, new] / 60.0).astype(np.float32),
        to_pickup_m=away(draw.tasks.place_m[:, 0].astype(np.int64), pickup),
        orders_waiting=waiting.astype(np.float32),
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    draw: _Draw
    codes: Int32
    routes: PlannedRoutes


def _plan(city: City, rng: np.random.Generator, pairs: int) -> _Planned:
    draw = _draw(city, rng, pairs)
    codes, stop_count = _nearest_next(draw.tasks, draw.orders)
    speed = np.full(pairs, SPEED_M_PER_MIN)
    legs = legs_by_place(codes, stop_count, draw.tasks.place_m, DETOUR_PERMILLE, speed)
    return _Planned(draw, codes, walk(codes, stop_count, draw.tasks, legs))


def simulate(city: City, pairs: int, seed: int) -> Rounds:
    """`pairs` simulated rider-order pairs of this city; equal seeds give equal rounds."""
    rng = np.random.default_rng(seed)
    planned = _plan(city, rng, pairs)
    routes = planned.routes
    truth = _truth(city, planned, rng)
    inputs = features_from_plan(routes, _context(city, planned.draw, rng))
    return Rounds(inputs, (routes.arrive_s / 60.0).astype(np.float32), truth, routes.stop_type == DELIVERY)


def best_possible(city: City, pairs: int, seed: int, draws: int) -> Float32:
    """The median over fresh noise, every hidden factor known, for the pairs `simulate` makes of this seed."""
    planned = _plan(city, np.random.default_rng(seed), pairs)
    noise = np.random.default_rng((seed, draws))
    return np.median([_truth(city, planned, noise) for _ in range(draws)], axis=0).astype(np.float32)
