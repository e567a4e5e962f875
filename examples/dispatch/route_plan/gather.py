"""Load one pair: the rider and the orders in hand if they are not loaded yet, the new orders, the legs between all.

Every row number is checked before it is used. It decides a pair's status as far as tables alone tell it. Next: plan.py.
"""

from examples.dispatch.route_plan.jit import kernel
from examples.dispatch.route_plan.layout import HAS_END, ORDERS_MAX, Option, Order, Pair, Rider, Status
from examples.dispatch.route_plan.load import (
    link_matrix,
    link_places,
    order_is_sound,
    orders_differ,
    rider_is_sound,
    set_order,
    set_rider,
)
from examples.dispatch.route_plan.memory import COUNT, ROW, STATUS, Tables, Work

_OK, _TOO_MANY, _BAD_INDEX = int(Status.OK), int(Status.TOO_MANY_ORDERS), int(Status.BAD_INDEX)
_BAD_VALUE, _DUPLICATE = int(Status.BAD_VALUE), int(Status.DUPLICATE_ORDER)
_P_RIDER, _P_FIRST, _P_SECOND = int(Pair.RIDER), int(Pair.FIRST), int(Pair.SECOND)
_R_SPEED, _O_ON_BOARD, _DETOUR = int(Rider.SPEED), int(Order.ON_BOARD), int(Option.DETOUR_PERMILLE)


@kernel
def load_hand(tables: Tables, work: Work, r: int, by_place: bool) -> tuple[int, int]:
    """Load a rider and the orders in hand. Returns (status, number of orders in hand)."""
    first, last = tables.hand_start[r], tables.hand_start[r + 1]
    if first < 0 or last < first or last > len(tables.hand):
        return _BAD_INDEX, 0
    if last - first > ORDERS_MAX:
        return _TOO_MANY, 0
    if not rider_is_sound(tables.riders[r], by_place):
        return _BAD_VALUE, 0
    set_rider(tables.riders[r], tables.options, work.stops, work.par, work.spots)
    for k in range(last - first):
        row = tables.hand[first + k]
        if row < 0 or row >= len(tables.orders):
            return _BAD_INDEX, 0
        if not order_is_sound(tables.orders[row], by_place):
            return _BAD_VALUE, 0
        work.rows[k] = row
        set_order(tables.orders[row], k, work.par, work.stops, work.pickups, work.spots)
    return _OK, int(last - first)


@kernel
def load_new(tables: Tables, work: Work, p: int, n: int, by_place: bool) -> tuple[int, int]:
    """Load the pair's new orders after the n in hand. Returns (status, number of orders)."""
    for column in (_P_FIRST, _P_SECOND):
        row = tables.pairs[p, column]
        if row == -1:
            continue
        if row < 0 or row >= len(tables.orders):
            return _BAD_INDEX, n
        if n >= ORDERS_MAX:
            return _TOO_MANY, n
        if not order_is_sound(tables.orders[row], by_place) or tables.orders[row, _O_ON_BOARD] != 0:
            return _BAD_VALUE, n
        work.rows[n] = row
        set_order(tables.orders[row], n, work.par, work.stops, work.pickups, work.spots)
        n += 1
    if not orders_differ(work.rows, n):
        return _DUPLICATE, n
    return _OK, n


@kernel
def load_pair(tables: Tables, work: Work, p: int, by_place: bool) -> tuple[int, int]:
    """Load pair p, its rider only where another one is loaded. Returns (status, number of orders)."""
    r = tables.pairs[p, _P_RIDER]
    if r < 0 or r >= len(tables.riders):
        return _BAD_INDEX, 0
    speed = tables.riders[r, _R_SPEED]
    detour = tables.options[_DETOUR]
    if r != work.held[ROW] or not by_place:
        status, n_hand = load_hand(tables, work, r, by_place)
        if status == _OK and by_place:
            high = 2 * n_hand + 1
            status = link_places(work.legs, work.spots, 0, high, work.par[HAS_END], detour, speed)
        work.held[ROW], work.held[STATUS], work.held[COUNT] = r, status, n_hand
    n_hand = work.held[COUNT]
    if work.held[STATUS] != _OK:
        return work.held[STATUS], n_hand
    status, n = load_new(tables, work, p, n_hand, by_place)
    if status == _OK and by_place:
        low, high = 2 * n_hand + 1, 2 * n + 1
        status = link_places(work.legs, work.spots, low, high, work.par[HAS_END], detour, speed)
    elif status == _OK:
        first, last = tables.matrix_start[p], tables.matrix_start[p + 1]
        status = link_matrix(work.legs, tables.seconds, tables.metres, first, last, n, work.par[HAS_END])
    return status, n
