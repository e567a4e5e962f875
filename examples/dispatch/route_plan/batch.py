"""The loop over a batch: for each pair load, plan in hand, plan with the new orders, write the answer.

One compiled call serves a whole request and lets go of the interpreter lock. A rider's route in hand is planned once
and kept for the rider's other pairs (coord mode); keeping it changes no answer, for the plan depends on the rider's own
number alone. A pair with a fault gets its status; nothing it holds can reach another pair. Next: solve.py.
"""

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.jit import jit, kernel
from examples.dispatch.route_plan.layout import (
    DUE,
    HAS_END,
    NO_STOP,
    ORDERS_MAX,
    PARAMETERS,
    START,
    STOP_FIELDS,
    STOPS_MAX,
    STRIDE,
    Option,
    Order,
    Pair,
    Rider,
    Solver,
    Status,
)
from examples.dispatch.route_plan.load import (
    Table,
    check_bounds,
    link_matrix,
    link_places,
    order_is_sound,
    orders_differ,
    rider_is_sound,
    set_order,
    set_rider,
)
from examples.dispatch.route_plan.plan import plan, take_route
from examples.dispatch.route_plan.starts import two_stage
from examples.dispatch.route_plan.walk import Ints, Legs, step

_OK, _INFEASIBLE, _TOO_MANY = int(Status.OK), int(Status.INFEASIBLE), int(Status.TOO_MANY_ORDERS)
_BAD_INDEX, _BAD_VALUE, _BAD_ROUTE = int(Status.BAD_INDEX), int(Status.BAD_VALUE), int(Status.BAD_ROUTE)
_DUPLICATE = int(Status.DUPLICATE_ORDER)
_P_RIDER, _P_FIRST, _P_SECOND, _P_TASK = int(Pair.RIDER), int(Pair.FIRST), int(Pair.SECOND), int(Pair.TASK)
_R_ID, _R_SPEED = int(Rider.ID), int(Rider.SPEED)
_O_ON_BOARD = int(Order.ON_BOARD)
_SOLVER, _STARTS, _SEED = int(Option.SOLVER), int(Option.STARTS), int(Option.SEED)
_DETOUR = int(Option.DETOUR_PERMILLE)
_INSERT = int(Solver.INSERT)
_UNKNOWN = -1


@kernel
def load_hand(
    riders: Table,
    orders: Table,
    hand_start: Table,
    hand: Table,
    r: int,
    by_place: bool,
    options: Ints,
    stops: Ints,
    par: Ints,
    pickups: Ints,
    spots: Ints,
    rows: Ints,
) -> tuple[int, int]:
    """Load a rider and the orders in hand. Returns (status, number of orders in hand)."""
    first, last = int(hand_start[r]), int(hand_start[r + 1])
    if first < 0 or last < first or last > len(hand):
        return _BAD_INDEX, 0
    if last - first > ORDERS_MAX:
        return _TOO_MANY, 0
    if not rider_is_sound(riders[r], by_place):
        return _BAD_VALUE, 0
    set_rider(riders[r], options, stops, par, spots)
    for k in range(last - first):
        row = int(hand[first + k])
        if row < 0 or row >= len(orders):
            return _BAD_INDEX, 0
        if not order_is_sound(orders[row], by_place):
            return _BAD_VALUE, 0
        rows[k] = row
        set_order(orders[row], k, par, stops, pickups, spots)
    return _OK, last - first


@kernel
def load_new(
    orders: Table, pair: Table, n: int, by_place: bool, stops: Ints, par: Ints, pickups: Ints, spots: Ints, rows: Ints
) -> tuple[int, int]:
    """Load the pair's new orders after the n in hand. Returns (status, number of orders)."""
    for column in (_P_FIRST, _P_SECOND):
        row = int(pair[column])
        if row == -1:
            continue
        if row < 0 or row >= len(orders):
            return _BAD_INDEX, n
        if n >= ORDERS_MAX:
            return _TOO_MANY, n
        if not order_is_sound(orders[row], by_place) or orders[row, _O_ON_BOARD] != 0:
            return _BAD_VALUE, n
        rows[n] = row
        set_order(orders[row], n, par, stops, pickups, spots)
        n += 1
    if not orders_differ(rows, n):
        return _DUPLICATE, n
    return _OK, n


@kernel
def route_metres(legs: Legs, par: Ints, seq: Ints, m: int) -> int:
    """Return the metres of a route, the way to the end stop with it."""
    total, u = 0, 0
    for k in range(m):
        total += legs[u, seq[k], 1]
        u = seq[k]
    if par[HAS_END] != 0:
        total += legs[u, STRIDE - 1, 1]
    return total


@jit
def plan_hand(
    legs: Legs,
    stops: Ints,
    par: Ints,
    pickups: Ints,
    n: int,
    options: Ints,
    number: int,
    route: NDArray[np.uint8],
    first: int,
    last: int,
    seq: Ints,
) -> tuple[int, int, int]:
    """Plan the orders in hand alone. Returns (status, length, cost); seq holds the route."""
    if first < 0 or last < first or last > len(route):
        return _BAD_INDEX, 0, 0
    status = check_bounds(legs, stops, par, pickups, n)
    if status != _OK:
        return status, 0, 0
    m = 0
    if options[_SOLVER] == _INSERT and n > 0:
        if last > first:
            m = take_route(route, first, last, pickups, n, seq)
            if m < 0:
                return _BAD_ROUTE, 0, 0
        else:  # no route given: the rider's own best guess stands in for it
            m, _, _ = two_stage(legs, stops, par, pickups, n, options[_STARTS], options[_SEED], number, seq)
            if m < 0:
                return _INFEASIBLE, 0, 0
    m, cost, _ = plan(legs, stops, par, pickups, n, n, options, number, seq, m)
    return (_OK if m >= 0 else _INFEASIBLE), m, cost


@kernel
def write_route(
    legs: Legs,
    stops: Ints,
    par: Ints,
    seq: Ints,
    m: int,
    route_out: NDArray[np.uint8],
    arrivals: Table,
) -> tuple[int, int]:
    """Write stops and arrivals of a planned route. Returns (max lateness, sum of lateness) over its deliveries."""
    top, total = 0, 0
    u, t = 0, par[START]
    for k in range(m):
        v = seq[k]
        route_out[k] = v
        arrive = t + legs[u, v, 0]
        if v % 2 == 0:
            arrivals[(v - 1) // 2] = arrive
            late = max(0, arrive - stops[v, DUE])
            top = max(top, late)
            total += late
        t, _, _, _ = step(legs, stops, par, u, v, t, 0, 0, 0)
        u = v
    return top, total


@jit
def run(
    riders: Table,
    orders: Table,
    hand_start: Table,
    hand: Table,
    route_start: Table,
    route: NDArray[np.uint8],
    pairs: Table,
    matrix_start: Ints,
    seconds: Table,
    metres: Table,
    options: Ints,
    states: Table,
    costs: Ints,
    routes: NDArray[np.uint8],
    arrivals: Table,
) -> None:
    """Plan every pair. states [P, 3] = status, proved, max lateness; costs [P, 4] = marginal, J, delta metres,
    lateness.

    The shapes of the tables were checked by the caller; what stands in them was not.
    """
    legs = np.zeros((STRIDE, STRIDE, 2), np.int32)
    stops = np.zeros((STRIDE, STOP_FIELDS), np.int64)
    par = np.zeros(PARAMETERS, np.int64)
    pickups = np.zeros(ORDERS_MAX, np.int64)
    spots = np.zeros((STRIDE, 2), np.int64)
    rows = np.zeros(ORDERS_MAX, np.int64)
    seq = np.zeros(STOPS_MAX + 2, np.int64)
    n_riders = len(riders)
    hand_status = np.full(n_riders, _UNKNOWN, np.int64)
    hand_plan = np.zeros((n_riders, 3), np.int64)  # length, cost, metres
    hand_route = np.zeros((n_riders, STOPS_MAX), np.uint8)
    by_place = len(matrix_start) == 0
    loaded, load_status, n_hand = -1, _OK, 0
    for p in range(len(pairs)):
        states[p, 0], states[p, 1], states[p, 2] = _OK, 0, 0
        costs[p, :] = 0
        routes[p, :] = NO_STOP
        arrivals[p, :] = -1
        r = int(pairs[p, _P_RIDER])
        if r < 0 or r >= n_riders:
            states[p, 0] = _BAD_INDEX
            continue
        if r != loaded or not by_place:
            load_status, n_hand = load_hand(
                riders, orders, hand_start, hand, r, by_place, options, stops, par, pickups, spots, rows
            )
            loaded = r
            if load_status == _OK and by_place:
                load_status = link_places(
                    legs, spots, 0, 2 * n_hand + 1, par[HAS_END], options[_DETOUR], int(riders[r, _R_SPEED])
                )
        if load_status != _OK:
            states[p, 0] = load_status
            continue
        status, n = load_new(orders, pairs[p], n_hand, by_place, stops, par, pickups, spots, rows)
        if status == _OK and by_place:
            status = link_places(
                legs, spots, 2 * n_hand + 1, 2 * n + 1, par[HAS_END], options[_DETOUR], int(riders[r, _R_SPEED])
            )
        elif status == _OK:
            status = link_matrix(legs, seconds, metres, matrix_start[p], matrix_start[p + 1], n, par[HAS_END])
        if status != _OK:
            states[p, 0] = status
            continue
        if hand_status[r] == _UNKNOWN or not by_place:
            hand_status[r], m, cost = plan_hand(
                legs,
                stops,
                par,
                pickups,
                n_hand,
                options,
                int(riders[r, _R_ID]),
                route,
                int(route_start[r]),
                int(route_start[r + 1]),
                seq,
            )
            hand_plan[r, 0], hand_plan[r, 1] = m, cost
            if hand_status[r] == _OK:
                hand_plan[r, 2] = route_metres(legs, par, seq, m)
                for k in range(m):
                    hand_route[r, k] = seq[k]
        status = hand_status[r]
        if status == _OK:
            status = check_bounds(legs, stops, par, pickups, n)
        if status != _OK:
            states[p, 0] = status
            continue
        m = hand_plan[r, 0]
        for k in range(m):
            seq[k] = hand_route[r, k]
        number = int(pairs[p, _P_TASK]) if n > n_hand else int(riders[r, _R_ID])
        m, cost, proved = plan(legs, stops, par, pickups, n_hand, n, options, number, seq, m)
        if m < 0:
            states[p, 0], states[p, 1] = _INFEASIBLE, 1 if proved else 0
            continue
        top, total = write_route(legs, stops, par, seq, m, routes[p], arrivals[p])
        states[p, 1], states[p, 2] = 1 if proved else 0, top
        costs[p, 0], costs[p, 1] = cost - hand_plan[r, 1], cost
        costs[p, 2], costs[p, 3] = route_metres(legs, par, seq, m) - hand_plan[r, 2], total
