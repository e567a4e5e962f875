"""Read one task out of the request's tables into the kernels' working memory, checking every number on the way.

The tables come from a stranger: no index is used before it is checked, and a task with a fault gets its status while
its neighbours go on. Working memory: legs [STRIDE, STRIDE, 2] seconds and metres, stops [STRIDE, STOP_FIELDS], par
[PARAMETERS], pickups [ORDERS_MAX] (0 for an order on board). Orders in hand come first, so a rider's part of the memory
serves all of the rider's pairs. It never plans. Next: memory.py.
"""

import math

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.jit import kernel
from examples.dispatch.route_plan.layout import (
    CAPACITY,
    COORDINATE_MAX,
    DUE,
    END,
    HARD,
    HAS_END,
    INT32_MAX,
    LOAD,
    LOAD_START,
    ORDER_WEIGHT_MAX,
    ORDERS_MAX,
    PRICE,
    READY,
    SERVICE,
    START,
    A,
    B,
    C,
    H,
    Option,
    Order,
    Rider,
    Status,
)
from examples.dispatch.route_plan.walk import Ints, Legs

Table = NDArray[np.int32]
_OK = int(Status.OK)
_INFEASIBLE = int(Status.INFEASIBLE)
_BAD_VALUE = int(Status.BAD_VALUE)
_BAD_MATRIX = int(Status.BAD_MATRIX)
_OVERFLOW = int(Status.OVERFLOW)
_R_X, _R_Y, _R_START, _R_CAPACITY = int(Rider.X), int(Rider.Y), int(Rider.START), int(Rider.CAPACITY)
_R_SPEED, _R_HAS_END, _R_END_DUE = int(Rider.SPEED), int(Rider.HAS_END), int(Rider.END_DUE)
_R_END_X, _R_END_Y = int(Rider.END_X), int(Rider.END_Y)
_O_PICKUP_X, _O_PICKUP_Y = int(Order.PICKUP_X), int(Order.PICKUP_Y)
_O_DELIVERY_X, _O_DELIVERY_Y = int(Order.DELIVERY_X), int(Order.DELIVERY_Y)
_O_READY, _O_DUE, _O_PICKUP_S, _O_DELIVERY_S = (
    int(Order.READY),
    int(Order.DUE),
    int(Order.PICKUP_S),
    int(Order.DELIVERY_S),
)
_O_LOAD, _O_WEIGHT, _O_ON_BOARD = int(Order.LOAD), int(Order.WEIGHT), int(Order.ON_BOARD)
_O_PICKUP_DUE, _O_DELIVERY_READY = int(Order.PICKUP_DUE), int(Order.DELIVERY_READY)
_DETOUR, _METRE, _LATE = int(Option.DETOUR_PERMILLE), int(Option.METRE_COST), int(Option.LATE_COST)
_WAIT, _FINISH, _HARD_TW = int(Option.WAIT_COST), int(Option.FINISH_COST), int(Option.HARD_TW)


@kernel
def rider_is_sound(rider: Table, by_place: bool) -> bool:
    """Check one row of the rider table."""
    sound = rider[_R_START] >= 0 and rider[_R_CAPACITY] >= 0 and 0 <= rider[_R_HAS_END] <= 1 and rider[_R_END_DUE] >= 0
    if by_place:
        sound = sound and rider[_R_SPEED] >= 1
        for column in (_R_X, _R_Y, _R_END_X, _R_END_Y):
            sound = sound and -COORDINATE_MAX <= rider[column] <= COORDINATE_MAX
    return bool(sound)


@kernel
def order_is_sound(order: Table, by_place: bool) -> bool:
    """Check one row of the order table."""
    sound = 0 <= order[_O_WEIGHT] <= ORDER_WEIGHT_MAX and 0 <= order[_O_ON_BOARD] <= 1
    for column in (
        _O_READY,
        _O_DUE,
        _O_PICKUP_S,
        _O_DELIVERY_S,
        _O_LOAD,
        _O_PICKUP_DUE,
        _O_DELIVERY_READY,
    ):
        sound = sound and order[column] >= 0
    if by_place:
        for column in (_O_PICKUP_X, _O_PICKUP_Y, _O_DELIVERY_X, _O_DELIVERY_Y):
            sound = sound and -COORDINATE_MAX <= order[column] <= COORDINATE_MAX
    return bool(sound)


@kernel
def set_rider(rider: Table, options: Ints, stops: Ints, par: Ints, spots: Ints) -> None:
    """Take over the rider's row and the cost weights."""
    par[A], par[B], par[C], par[H] = options[_METRE], options[_LATE], options[_WAIT], options[_FINISH]
    par[HARD] = options[_HARD_TW]
    par[CAPACITY], par[START], par[HAS_END] = rider[_R_CAPACITY], rider[_R_START], rider[_R_HAS_END]
    spots[0, 0], spots[0, 1] = rider[_R_X], rider[_R_Y]
    spots[END, 0], spots[END, 1] = rider[_R_END_X], rider[_R_END_Y]
    stops[END, DUE] = rider[_R_END_DUE]


@kernel
def set_order(order: Table, o: int, par: Ints, stops: Ints, pickups: Ints, spots: Ints) -> None:
    """Take over an order's row as local order o."""
    p, d = 2 * o + 1, 2 * o + 2
    pickups[o] = 0 if order[_O_ON_BOARD] == 1 else p
    stops[p, READY], stops[p, DUE], stops[p, SERVICE] = order[_O_READY], order[_O_PICKUP_DUE], order[_O_PICKUP_S]
    stops[p, LOAD], stops[p, PRICE] = order[_O_LOAD], 0
    stops[d, READY], stops[d, DUE], stops[d, SERVICE] = order[_O_DELIVERY_READY], order[_O_DUE], order[_O_DELIVERY_S]
    stops[d, LOAD], stops[d, PRICE] = -order[_O_LOAD], par[B] * order[_O_WEIGHT]
    spots[p, 0], spots[p, 1] = order[_O_PICKUP_X], order[_O_PICKUP_Y]
    spots[d, 0], spots[d, 1] = order[_O_DELIVERY_X], order[_O_DELIVERY_Y]


@kernel
def link_places(legs: Legs, spots: Ints, low: int, high: int, has_end: int, detour_permille: int, speed: int) -> int:
    """Fill the legs between stops low..high-1 and all stops before them, and the end stop. Returns OK or OVERFLOW.

    metres = ceil(detour * sqrt(dx² + dy²)) with int64 squares and one correctly rounded double operation after another;
    seconds = ceil(60 * metres / speed) in integers.
    """
    detour = detour_permille / 1000.0
    for v in range(low, high):
        for u in range(v + 1):
            w = u
            if u == v:  # the place after the last stop stands for the end stop
                if has_end == 0:
                    legs[v, v, 0], legs[v, v, 1] = 0, 0
                    continue
                w = END
            dx, dy = spots[w, 0] - spots[v, 0], spots[w, 1] - spots[v, 1]
            metres = math.ceil(detour * math.sqrt(float(dx * dx + dy * dy)))
            seconds = (metres * 60 + speed - 1) // speed
            if seconds > INT32_MAX or metres > INT32_MAX:
                return _OVERFLOW
            legs[w, v, 0], legs[w, v, 1] = seconds, metres
            legs[v, w, 0], legs[v, w, 1] = seconds, metres
    return _OK


@kernel
def link_matrix(legs: Legs, seconds: Table, metres: Table, first: int, last: int, n: int, has_end: int) -> int:
    """Copy a task's matrix [2n+1 (+1 with an end stop)]² from the flat tables. Returns OK or BAD_MATRIX."""
    size = 2 * n + 1 + has_end
    if first < 0 or last > len(seconds) or last > len(metres) or last - first != size * size:
        return _BAD_MATRIX
    at = first
    for row in range(size):
        u = row if row <= 2 * n else END
        for column in range(size):
            v = column if column <= 2 * n else END
            if seconds[at] < 0 or metres[at] < 0:
                return _BAD_MATRIX
            legs[u, v, 0], legs[u, v, 1] = seconds[at], metres[at]
            at += 1
    return _OK


@kernel
def check_bounds(legs: Legs, stops: Ints, par: Ints, pickups: Ints, n: int) -> int:
    """Set the load at the start. Returns OVERFLOW if a route might pass int32, INFEASIBLE if the load cannot fit."""
    top_seconds, top_metres, count = 0, 0, 2 * n + 1
    latest, service = par[START], 0
    for u in range(count + 1):
        a = u if u < count else END
        if a == END and par[HAS_END] == 0:
            continue
        for v in range(count + 1):
            b = v if v < count else END
            if b == END and par[HAS_END] == 0:
                continue
            if a != b:
                top_seconds = max(top_seconds, int(legs[a, b, 0]))
                top_metres = max(top_metres, int(legs[a, b, 1]))
        if 0 < a < END:
            service += stops[a, SERVICE]
            latest = max(latest, stops[a, READY])
    if latest + service + count * top_seconds > INT32_MAX or count * top_metres > INT32_MAX:
        return _OVERFLOW
    on_board, fits = 0, True
    for o in range(n):
        load = stops[2 * o + 1, LOAD]
        if pickups[o] == 0:
            on_board += load
        fits = fits and load <= par[CAPACITY]
    par[LOAD_START] = on_board
    return _OK if fits and on_board <= par[CAPACITY] else _INFEASIBLE


@kernel
def orders_differ(rows: Ints, n: int) -> bool:
    """Say whether the n order rows are all different."""
    for a in range(n):
        for b in range(a):
            if rows[a] == rows[b]:
                return False
    return n <= ORDERS_MAX
