"""The loop over a batch: for each pair load, plan in hand, plan with the new orders, write the answer.

One compiled call serves a whole request and lets go of the interpreter lock. A rider's route in hand is planned once
and kept for the rider's other pairs (coord mode); keeping it changes no answer, for the plan depends on the rider's own
number alone. A pair with a fault gets its status; nothing it holds can reach another pair. Next: solve.py.
"""

import numpy as np

from examples.dispatch.route_plan.gather import load_pair
from examples.dispatch.route_plan.jit import jit, kernel
from examples.dispatch.route_plan.layout import (
    DUE,
    HAS_END,
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
)
from examples.dispatch.route_plan.memory import COUNT, ROW, UNKNOWN, Bytes, Hands, Replies, Tables, Work
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
def plan_hand(tables: Tables, work: Work, r: int, n: int) -> tuple[int, int, int]:
    """Plan the n orders in hand alone. Returns (status, length, cost); work.seq holds the route."""
    legs, stops, par, pickups, seq = work.legs, work.stops, work.par, work.pickups, work.seq
    first, last = tables.route_start[r], tables.route_start[r + 1]
    if first < 0 or last < first or last > len(tables.route):
        return _BAD_INDEX, 0, 0
    status = check_bounds(legs, stops, par, pickups, n)
    if status != _OK:
        return status, 0, 0
    options, number, m = tables.options, int(tables.riders[r, _R_ID]), 0
    if options[_SOLVER] == _INSERT and n > 0:
        if last > first:
            m = take_route(tables.route, first, last, pickups, n, seq)
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
    route_out: Bytes,
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
def plan_pair(tables: Tables, work: Work, hands: Hands, replies: Replies, p: int, n: int, by_place: bool) -> int:
    """Plan a loaded pair and write its answer. Returns its status."""
    legs, stops, par, seq = work.legs, work.stops, work.par, work.seq
    r, n_hand = tables.pairs[p, _P_RIDER], work.held[COUNT]
    if hands.status[r] == UNKNOWN or not by_place:
        hands.status[r], m, hands.cost[r] = plan_hand(tables, work, r, n_hand)
        hands.length[r] = m
        if hands.status[r] == _OK:
            hands.metres[r] = route_metres(legs, par, seq, m)
            for k in range(m):
                hands.route[r, k] = seq[k]
    if hands.status[r] != _OK:
        return int(hands.status[r])
    status = check_bounds(legs, stops, par, work.pickups, n)
    if status != _OK:
        return status
    m = hands.length[r]
    for k in range(m):
        seq[k] = hands.route[r, k]
    number = tables.pairs[p, _P_TASK] if n > n_hand else tables.riders[r, _R_ID]
    m, cost, proved = plan(legs, stops, par, work.pickups, n_hand, n, tables.options, int(number), seq, m)
    replies.states[p, 1] = 1 if proved else 0
    if m < 0:
        return _INFEASIBLE
    top, total = write_route(legs, stops, par, seq, m, replies.routes[p], replies.arrivals[p])
    replies.states[p, 2] = top
    replies.costs[p, 0], replies.costs[p, 1] = cost - hands.cost[r], cost
    replies.costs[p, 2], replies.costs[p, 3] = route_metres(legs, par, seq, m) - hands.metres[r], total
    return _OK


@jit
def run(tables: Tables, replies: Replies) -> None:
    """Plan every pair.

    The shapes of the tables were checked by the caller, what stands in them was not. Replies come filled with what
    "no answer" looks like.
    """
    work = Work(
        np.zeros((STRIDE, STRIDE, 2), np.int32),
        np.zeros((STRIDE, STOP_FIELDS), np.int64),
        np.zeros(PARAMETERS, np.int64),
        np.zeros(ORDERS_MAX, np.int64),
        np.zeros((STRIDE, 2), np.int64),
        np.zeros(ORDERS_MAX, np.int64),
        np.zeros(STOPS_MAX + 2, np.int64),
        np.zeros(3, np.int64),
    )
    work.held[ROW] = UNKNOWN
    riders = len(tables.riders)
    hands = Hands(
        np.zeros(riders, np.int64),
        np.zeros(riders, np.int64),
        np.zeros(riders, np.int64),
        np.zeros(riders, np.int64),
        np.zeros((riders, STOPS_MAX), np.uint8),
    )
    for r in range(riders):
        hands.status[r] = UNKNOWN
    by_place = len(tables.matrix_start) == 0
    for p in range(len(tables.pairs)):
        status, n = load_pair(tables, work, p, by_place)
        if status == _OK:
            status = plan_pair(tables, work, hands, replies, p, n, by_place)
        replies.states[p, 0] = status
