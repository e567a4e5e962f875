"""exact, for the full cost: depth-first branch and bound over partial routes.

Children are tried by ascending stop code, so complete routes come up in lexicographic order, and a branch that can only
equal the best is cut once its prefix is lexicographically greater: what remains is the smallest of the cheapest routes,
whatever route the search began with. The lower bound adds, to what the prefix has cost, the least leg into every stop
to come and the lateness each order must at least have, by shortest travel times. Next: subsets.py.
"""

import numpy as np

from examples.dispatch.route_plan.jit import jit, kernel
from examples.dispatch.route_plan.layout import (
    CAPACITY,
    DUE,
    END,
    HARD,
    HAS_END,
    INT32_MAX,
    LOAD_START,
    PRICE,
    READY,
    SERVICE,
    START,
    STOPS_MAX,
    STRIDE,
    A,
    H,
)
from examples.dispatch.route_plan.walk import Ints, Legs, before, finish, step


@kernel
def list_stops(par: Ints, pickups: Ints, n: int, listed: Ints) -> int:
    """List the rider, every stop to serve, ascending, and the end stop where there is one."""
    count = 1
    listed[0] = 0
    for o in range(n):
        if pickups[o] > 0:
            listed[count] = pickups[o]
            count += 1
        listed[count] = 2 * o + 2
        count += 1
    if par[HAS_END] != 0:
        listed[count] = END
        count += 1
    return count


@kernel
def shortest_times(legs: Legs, listed: Ints, count: int, near: Ints) -> None:
    """Fill near with the shortest travel times by any way (Floyd and Warshall): direct legs may break the triangle."""
    for a in range(count):
        for b in range(count):
            near[listed[a], listed[b]] = legs[listed[a], listed[b], 0] if a != b else 0
    for c in range(1, count):
        w = listed[c]
        for a in range(count):
            u = listed[a]
            for b in range(count):
                v = listed[b]
                way = near[u, w] + near[w, v]
                near[u, v] = min(near[u, v], way)


@kernel
def least_legs(legs: Legs, listed: Ints, count: int, least: Ints) -> None:
    """Fill least[v, 0] and [v, 1] with the least seconds and metres into v from any stop but the rider's place."""
    for b in range(1, count):
        v = listed[b]
        seconds, metres = INT32_MAX, INT32_MAX
        for a in range(1, count):
            u = listed[a]
            if u != v and u != END and not (v % 2 == 1 and v < END and u == v + 1):
                seconds = min(seconds, int(legs[u, v, 0]))
                metres = min(metres, int(legs[u, v, 1]))
        least[v, 0], least[v, 1] = seconds, metres


@kernel
def late_at_least(stops: Ints, par: Ints, near: Ints, pickups: Ints, phases: Ints, n: int, u: int, t: int) -> int:
    """Return the least cost of lateness to come after leaving u at t, or -1 where a hard window must fail."""
    total = 0
    for o in range(n):
        if phases[o] == 2:
            continue
        delivery = 2 * o + 2
        if phases[o] == 0:
            pickup = pickups[o]
            at = t + near[u, pickup]
            if par[HARD] != 0 and at > stops[pickup, DUE]:
                return -1
            arrive = max(at, stops[pickup, READY]) + stops[pickup, SERVICE] + near[pickup, delivery]
        else:
            arrive = t + near[u, delivery]
        late = arrive - stops[delivery, DUE]
        if late > 0:
            if par[HARD] != 0:
                return -1
            total += stops[delivery, PRICE] * late
    return total


@kernel
def open_search(
    legs: Legs, stops: Ints, par: Ints, pickups: Ints, n: int, near: Ints, least: Ints, phases: Ints, listed: Ints
) -> tuple[int, int, int]:
    """Fill the tables of the lower bound. Returns (stops to serve, least metres to go, least seconds to go)."""
    count = list_stops(par, pickups, n, listed)
    shortest_times(legs, listed, count, near)
    least_legs(legs, listed, count, least)
    m, metres, seconds = 0, 0, 0
    for o in range(n):
        phases[o] = 0 if pickups[o] > 0 else 1
        m += 2 - phases[o]
    for b in range(1, count):
        v = listed[b]
        metres += least[v, 1]
        seconds += least[v, 0] + stops[v, SERVICE]
    return m, metres, seconds


@kernel
def next_stop(phases: Ints, n: int, tried: int) -> int:
    """Return the smallest stop code above `tried` that may come now, or 0."""
    for code in range(tried + 1, 2 * n + 1):
        if phases[(code - 1) // 2] == (code - 1) % 2:
            return code
    return 0


@jit
def branch_and_bound(
    legs: Legs, stops: Ints, par: Ints, pickups: Ints, n: int, nodes_max: int, best: Ints, bound: int
) -> tuple[int, bool]:
    """Search for a route no dearer than bound (whose route, if one is known, is in best).

    Returns (cost, finished): best holds the route and cost its J; cost is the given bound where nothing better was
    found, and finished is False where nodes_max ended the search. Under hard windows only routes without violation
    count.
    """
    listed, phases = np.zeros(STRIDE, np.int64), np.zeros(n, np.int64)
    near, least = np.zeros((STRIDE, STRIDE), np.int64), np.zeros((STRIDE, 2), np.int64)
    m, metres, seconds = open_search(legs, stops, par, pickups, n, near, least, phases, listed)
    seq, tried = np.zeros(STOPS_MAX + 1, np.int64), np.zeros(STOPS_MAX + 1, np.int64)
    state = np.zeros((STOPS_MAX + 1, 3), np.int64)  # after k stops: leave time, load, cost
    state[0, 0], state[0, 1] = par[START], par[LOAD_START]
    depth, nodes = 0, 0
    while depth >= 0:
        v = next_stop(phases, n, tried[depth])
        if v == 0:  # all tried: take back the stop that led here
            depth -= 1
            if depth >= 0:
                v = seq[depth]
                phases[(v - 1) // 2] -= 1
                metres, seconds = metres + least[v, 1], seconds + least[v, 0] + stops[v, SERVICE]
            continue
        tried[depth] = v
        nodes += 1
        if nodes > nodes_max:
            return bound, False
        u = seq[depth - 1] if depth > 0 else 0
        t, load, cost, violation = step(legs, stops, par, u, v, state[depth, 0], state[depth, 1], state[depth, 2], 0)
        if load > par[CAPACITY] or violation > 0:
            continue
        seq[depth] = v
        if depth + 1 == m:
            _, cost, violation = finish(legs, stops, par, v, t, cost, 0)
            if violation == 0 and (cost < bound or (cost == bound and before(seq, best, m))):
                bound = cost
                for k in range(m):
                    best[k] = seq[k]
            continue
        phases[(v - 1) // 2] += 1
        metres, seconds = metres - least[v, 1], seconds - least[v, 0] - stops[v, SERVICE]
        late = late_at_least(stops, par, near, pickups, phases, n, v, t)
        floor = cost + par[A] * metres + par[H] * (t + seconds) + late
        depth += 1
        state[depth, 0], state[depth, 1], state[depth, 2] = t, load, cost
        # A branch that is cut is left as if all its stops had been tried.
        keep = late >= 0 and (floor < bound or (floor == bound and not before(best, seq, depth)))
        tried[depth] = 0 if keep else 2 * n
    return bound, True
