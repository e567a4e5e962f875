"""exact, for pure distance: dynamic programming over the states of all orders.

Where only metres count, what is left to do depends on (state of each order, last stop) alone: each order waits, rides
or is delivered, 3^n states. Table cell [state, i] holds the least metres still to go when order i was the last one
served (its pickup if it rides, its delivery if it is done). The route is then read forwards, smallest stop code first,
so it is the lexicographically smallest of the shortest. It never handles time. Next: load.py.
"""

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.jit import jit, kernel
from examples.dispatch.route_plan.layout import CAPACITY, END, HAS_END, INT32_MAX, LOAD, LOAD_START
from examples.dispatch.route_plan.walk import Ints, Legs


@kernel
def cheapest_next(
    legs: Legs,
    left: NDArray[np.int32],
    places: Ints,
    phases: Ints,
    n: int,
    room: int,
    stops: Ints,
    here: int,
    u: int,
) -> tuple[int, int]:
    """Return (metres still to go from stop u in state here, the smallest next stop code that reaches them)."""
    best, chosen = INT32_MAX, 0
    for o in range(n):
        if phases[o] == 2:
            continue
        v = 2 * o + 1 + phases[o]
        if phases[o] == 0 and stops[v, LOAD] > room:
            continue
        after = left[(here + places[o]) * n + o]
        if after < INT32_MAX and legs[u, v, 1] + after < best:
            best, chosen = legs[u, v, 1] + after, v
    return best, chosen


@jit
def shortest(legs: Legs, stops: Ints, par: Ints, pickups: Ints, n: int, best: Ints) -> int:
    """Write the shortest route into best. Returns its length, or -1 where no route fits the load."""
    places = np.zeros(n + 1, np.int64)
    states = 1
    for o in range(n):
        places[o] = states
        states *= 3 if pickups[o] > 0 else 2
    left = np.zeros(states * n, np.int32)
    for k in range(states * n):
        left[k] = INT32_MAX
    phases = np.zeros(n, np.int64)
    for here in range(states - 1, -1, -1):
        room, done = par[CAPACITY] - par[LOAD_START], True
        rest_of = here
        for o in range(n):
            radix = 3 if pickups[o] > 0 else 2
            phases[o] = rest_of % radix + (3 - radix)
            rest_of //= radix
            if phases[o] == 1 and radix == 3:
                room -= stops[2 * o + 1, LOAD]
            elif phases[o] == 2 and radix == 2:
                room -= stops[2 * o + 2, LOAD]
            done = done and phases[o] == 2
        if room < 0:
            continue
        for o in range(n):
            started = phases[o] > (0 if pickups[o] > 0 else 1)
            if not started:
                continue
            u = 2 * o + phases[o]
            if done:
                left[here * n + o] = legs[u, END, 1] if par[HAS_END] != 0 else 0
            else:
                metres, _ = cheapest_next(legs, left, places, phases, n, room, stops, here, u)
                left[here * n + o] = metres
    return read_route(legs, left, places, pickups, n, stops, par, best)


@jit
def read_route(
    legs: Legs, left: NDArray[np.int32], places: Ints, pickups: Ints, n: int, stops: Ints, par: Ints, best: Ints
) -> int:
    """Follow the table from the rider's place. Returns the route's length, or -1 where there is none."""
    phases = np.zeros(n, np.int64)
    room = par[CAPACITY] - par[LOAD_START]
    todo = 0
    for o in range(n):
        phases[o] = 0 if pickups[o] > 0 else 1
        todo += 2 - phases[o]
    here, u = 0, 0
    for k in range(todo):
        metres, v = cheapest_next(legs, left, places, phases, n, room, stops, here, u)
        if metres >= INT32_MAX:
            return -1
        best[k] = v
        o = (v - 1) // 2
        phases[o] += 1
        here += places[o]
        room -= stops[v, LOAD]
        u = v
    return todo
