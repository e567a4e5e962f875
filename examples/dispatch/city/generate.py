"""A seeded city at lunch peak: riders with orders in hand, new orders, and candidate pairs in uneven shards.

Every number has a source. Meituan's published challenge data has 663 new orders and 2,585 candidate riders in a mean
lunch round; Grubhub's mdrplib gives 320 m/min, 4 + 4 minutes of service, meals ready 15 minutes (median) to 30 (nine of
ten) after placing, a target of 40 minutes and at most 90. Peak riders hold up to 10 orders; here 0 to 5, mostly 1 to 3.
Areas are lognormal (sigma 1), for real areas differ as much, and each is one shard. It reads no clock and no file.
Next: real.py.
"""

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.city.rounds import Round, with_routes
from examples.dispatch.route_plan import Batch, Options, Order, Pair, Rider, Solver
from examples.dispatch.route_plan.layout import INT32_MAX

SPEED_M_PER_MIN = 320
SERVICE_S = 4 * 60
TARGET_S = 40 * 60
LONGEST_S = 90 * 60
READY_MEDIAN_S = 15 * 60
READY_SIGMA = math.log(2.0) / 1.2816  # nine of ten within twice the median; 1.2816 is the normal's 90 % point
IN_HAND = (0.12, 0.26, 0.27, 0.20, 0.10, 0.05)  # share of riders with 0..5 orders; our choice
SHOPS_PER_ORDER = 0.35  # 116-323 shops for 505-3,213 orders in mdrplib's days, a third at their smaller end
AREA_SIGMA = 1.0
CAPACITY = 12
NOW_S = 3600  # so that orders placed up to an hour ago have times above 0


@dataclass(frozen=True, slots=True)
class CityPlan:
    """How large a round to draw.

    Defaults are the full lunch round; divide orders and riders alike for a smaller one.
    """

    seed: int = 0
    orders: int = 663
    riders: int = 2585
    near: int = 64  # candidate riders kept per order
    areas: int = 64
    side_m: int = 24_000
    options: Options = field(default_factory=Options)


def city_round(plan: CityPlan) -> Round:
    """Draw a round. The same plan gives the same bytes. Raises ValueError where the sizes make no city."""
    if min(plan.orders, plan.riders, plan.near, plan.areas) < 1 or plan.side_m < 1000:
        raise ValueError("a city needs at least one order, rider, candidate and area, and a side of 1000 m")
    rng = np.random.default_rng(plan.seed)
    centres = rng.uniform(0.1 * plan.side_m, 0.9 * plan.side_m, (plan.areas, 2))
    shares = area_shares(plan.areas)
    area = np.repeat(np.arange(plan.areas), apportion(plan.orders, shares))
    # Every area with an order has a shop, the others come on top by the areas' shares.
    more = rng.choice(plan.areas, round(plan.orders * SHOPS_PER_ORDER), p=shares)
    shop_area = np.sort(np.concatenate([np.unique(area), more]))
    shops = _around(rng, centres, shop_area, plan)
    riders = np.zeros((plan.riders, len(Rider)), np.int32)
    riders[:, Rider.ID] = np.arange(plan.riders)
    riders[:, [Rider.X, Rider.Y]] = _around(rng, centres, rng.choice(plan.areas, plan.riders, p=shares), plan)
    riders[:, Rider.START] = NOW_S
    riders[:, Rider.CAPACITY] = CAPACITY
    riders[:, Rider.SPEED] = SPEED_M_PER_MIN
    riders[:, Rider.END_DUE] = INT32_MAX
    in_hand = rng.choice(len(IN_HAND), plan.riders, p=IN_HAND)
    owner = np.repeat(np.arange(plan.riders), in_hand)
    near_shop = _near_shops(rng, shops, riders[owner][:, [Rider.X, Rider.Y]])
    held = _orders(rng, shops[near_shop], NOW_S - rng.integers(0, 1800, len(owner)))
    # Two of five orders in hand are already picked up: a rider spends about that share of an order carrying it.
    held[:, Order.ON_BOARD] = rng.random(len(owner)) < 0.4
    first, last = np.searchsorted(shop_area, area), np.searchsorted(shop_area, area, side="right")
    fresh = _orders(rng, shops[rng.integers(first, last)], NOW_S - rng.integers(0, 60, plan.orders))
    pairs = nearest_riders(fresh, riders, plan.near)
    pairs[:, Pair.FIRST] += len(held)
    batch = Batch.from_tensors(
        {
            "riders": riders,
            "orders": np.concatenate([held, fresh]),
            "hand_start": np.concatenate([[0], np.cumsum(in_hand)]).astype(np.int32),
            "hand": np.arange(len(held), dtype=np.int32),
            "route_start": np.zeros(plan.riders + 1, np.int32),
            "route": np.zeros(0, np.uint8),
            "pairs": pairs,
            "matrix_start": np.zeros(0, np.int64),
            "seconds": np.zeros(0, np.int32),
            "metres": np.zeros(0, np.int32),
            "options": plan.options.tensor(),
        }
    )
    batch = with_routes(batch, Options(solver=Solver.TWO_STAGE, starts=4, seed=plan.seed))
    return Round(f"city-{plan.seed}", batch, np.repeat(area, len(pairs) // plan.orders).astype(np.int32))


def nearest_riders(orders: NDArray[np.int32], riders: NDArray[np.int32], near: int) -> NDArray[np.int32]:
    """Pair each order with its nearest riders by straight line, ties to the lower row: int32 [orders * near, 4]."""
    near = min(near, len(riders))
    pairs = np.full((len(orders) * near, len(Pair)), -1, np.int32)
    spots = riders[:, [Rider.X, Rider.Y]].astype(np.int64)
    for row, shop in enumerate(orders[:, [Order.PICKUP_X, Order.PICKUP_Y]].astype(np.int64)):
        squares = ((spots - shop) ** 2).sum(axis=1)
        block = slice(row * near, (row + 1) * near)
        pairs[block, Pair.RIDER] = np.sort(np.argsort(squares, kind="stable")[:near])
        pairs[block, Pair.FIRST] = row
    pairs[:, Pair.TASK] = np.arange(len(pairs))
    return pairs


def area_shares(areas: int) -> NDArray[np.float64]:
    """Return the areas' shares of the city's trade, smallest first: lognormal, taken at its quantiles, not drawn.

    So every seed is equally uneven: of 64 areas the largest has 11 times the median.
    """
    quantiles = (np.arange(areas) + 0.5) / areas
    sizes = np.exp(AREA_SIGMA * np.array([NormalDist().inv_cdf(float(q)) for q in quantiles]))
    return np.asarray(sizes / sizes.sum(), np.float64)


def apportion(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Split a whole number by shares, the largest remainders rounded up."""
    parts = np.floor(total * shares).astype(np.int64)
    remainders = total * shares - parts
    parts[np.argsort(-remainders, kind="stable")[: total - int(parts.sum())]] += 1
    return parts


def _around(
    rng: np.random.Generator, centres: NDArray[np.float64], area: NDArray[np.int64], plan: CityPlan
) -> NDArray[np.int32]:
    spread = plan.side_m / 24  # a kilometre in the full city
    spots = centres[area] + rng.normal(0.0, spread, (len(area), 2))
    return np.clip(spots, 0, plan.side_m).astype(np.int32)


def _near_shops(rng: np.random.Generator, shops: NDArray[np.int32], spots: NDArray[np.int32]) -> NDArray[np.int64]:
    """Draw for each spot one of its eight nearest shops."""
    choice = rng.integers(0, min(8, len(shops)), len(spots))
    found = np.empty(len(spots), np.int64)
    for row, spot in enumerate(spots.astype(np.int64)):
        squares = ((shops - spot) ** 2).sum(axis=1)
        found[row] = np.argsort(squares, kind="stable")[choice[row]]
    return found


def _orders(rng: np.random.Generator, pickups: NDArray[np.int32], placed: NDArray[np.int64]) -> NDArray[np.int32]:
    """Draw one order per pickup spot."""
    count = len(pickups)
    table = np.zeros((count, len(Order)), np.int32)
    table[:, [Order.PICKUP_X, Order.PICKUP_Y]] = pickups
    # 2.3 km from shop to customer is mdrplib's mean, six its greatest.
    angle, way = rng.uniform(0.0, 2 * math.pi, count), np.minimum(rng.gamma(3.0, 770.0, count), 6000.0)
    table[:, Order.DELIVERY_X] = pickups[:, 0] + (way * np.cos(angle)).astype(np.int32)
    table[:, Order.DELIVERY_Y] = pickups[:, 1] + (way * np.sin(angle)).astype(np.int32)
    wait = np.minimum(READY_MEDIAN_S * np.exp(READY_SIGMA * rng.standard_normal(count)), LONGEST_S - TARGET_S)
    table[:, Order.READY] = placed + wait.astype(np.int64)
    table[:, Order.DUE] = placed + TARGET_S
    table[:, [Order.PICKUP_S, Order.DELIVERY_S]] = SERVICE_S
    table[:, Order.LOAD] = rng.integers(1, 4, count)
    table[:, Order.WEIGHT] = 1
    table[:, Order.PICKUP_DUE] = INT32_MAX
    return table
