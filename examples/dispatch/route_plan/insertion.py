"""Cheapest insertion: the best places for one order's stops in a route that keeps its own sequence.

It is the `insert` solver's whole neighbourhood ((m+1)(m+2)/2 places for m stops) and the building step of `two_stage`.
It never changes the order of the stops that are there. Next: improve.py.
"""

import numpy as np

from examples.dispatch.route_plan.jit import jit, kernel
from examples.dispatch.route_plan.layout import (
    AT,
    CAPACITY,
    CARRIED,
    COST,
    DETOUR_METRES,
    DETOUR_SECONDS,
    DUE,
    END,
    FAR,
    HARD,
    HAS_END,
    LEAST_LEG,
    PRICE,
    SMALLER_WINS,
    STOPS_MAX,
    TAIL_LATE,
    TAIL_METRES,
    TAIL_PRICE,
    TAIL_VIOLATION,
    TAIL_WAIT,
    TOTAL,
    VIOLATION,
    A,
    H,
)
from examples.dispatch.route_plan.walk import Ints, Legs, fill, rest, step

NO_PLACE = -1


@kernel
def at_place(seq: Ints, pickup: int, delivery: int, i: int, j: int, k: int) -> int:
    """Return the k-th stop of seq with the pickup put before seq[i] and the delivery before seq[j] (i <= j)."""
    if pickup > 0:
        if k < i:
            return int(seq[k])
        if k == i:
            return pickup
        k -= 1
    if k < j:
        return int(seq[k])
    if k == j:
        return delivery
    return int(seq[k - 1])


@kernel
def place_before(seq: Ints, m: int, pickup: int, delivery: int, i: int, j: int, other_i: int, other_j: int) -> bool:
    """Say whether places (i, j) give a lexicographically smaller route than the other places."""
    for k in range(m + (2 if pickup > 0 else 1)):
        first = at_place(seq, pickup, delivery, i, j, k)
        second = at_place(seq, pickup, delivery, other_i, other_j, k)
        if first != second:
            return first < second
    return False


@kernel
def put(seq: Ints, m: int, pickup: int, delivery: int, i: int, j: int) -> int:
    """Insert in place; returns the new length."""
    for k in range(m, j, -1):
        seq[k] = seq[k - 1]
    seq[j] = delivery
    m += 1
    if pickup > 0:
        for k in range(m, i, -1):
            seq[k] = seq[k - 1]
        seq[i] = pickup
        m += 1
    return m


@kernel
def fill_detours(legs: Legs, par: Ints, seq: Ints, m: int, tab: Ints, delivery: int) -> None:
    """Write, for each place j >= 1, the least detour by the delivery and the least leg into it from place j on.

    They may be negative, for nothing says that legs obey the triangle inequality.
    """
    least_metres, least_seconds, least_leg = FAR, FAR, FAR
    for j in range(m, 0, -1):
        u = seq[j - 1]
        seconds, metres = legs[u, delivery, 0] + 0, legs[u, delivery, 1] + 0
        least_leg = min(least_leg, seconds)
        if j < m or par[HAS_END] != 0:
            v = seq[j] if j < m else END
            seconds += legs[delivery, v, 0] - legs[u, v, 0]
            metres += legs[delivery, v, 1] - legs[u, v, 1]
        least_metres, least_seconds = min(least_metres, metres), min(least_seconds, seconds)
        tab[j, DETOUR_METRES], tab[j, DETOUR_SECONDS], tab[j, LEAST_LEG] = least_metres, least_seconds, least_leg


@kernel
def must_lose(
    stops: Ints,
    par: Ints,
    tab: Ints,
    j: int,
    delivery: int,
    t: int,
    cost: int,
    violation: int,
    bound_violation: int,
    bound: int,
) -> bool:
    """Say whether all places from j on break the bound, having left the stop before place j at t.

    Leaving no sooner than the table's route, with no detour that saves time, makes every later stop no sooner.
    """
    cost += tab[j - 1, TAIL_METRES] + par[A] * tab[j, DETOUR_METRES]
    if t >= tab[j, AT] and tab[j, DETOUR_SECONDS] >= 0:
        delay = max(0, t - tab[j, AT] - tab[j, TAIL_WAIT])
        cost += tab[j, TAIL_LATE] + par[H] * tab[TOTAL, AT] + tab[j, TAIL_PRICE] * delay
        violation += tab[j, TAIL_VIOLATION]
    late = t + tab[j, LEAST_LEG] - stops[delivery, DUE]
    if late > 0:
        cost += stops[delivery, PRICE] * late
        violation += par[HARD] * late
    return bool(violation > bound_violation or (violation == bound_violation and cost > bound))


@kernel
def best_place(
    legs: Legs,
    stops: Ints,
    par: Ints,
    seq: Ints,
    m: int,
    tab: Ints,
    pickup: int,
    delivery: int,
    ties: int,
    bound_violation: int,
    bound: int,
) -> tuple[int, int, int, int]:
    """Find the best places (i, j) within the bound. Returns (i, j, violation, cost); i is -1 where there is none.

    pickup is 0 for an order on board. With SMALLER_WINS equal cost goes to the lexicographically smaller route and the
    bound itself is allowed; with FIRST_STAYS the first of the scan stays and only what is strictly below the bound
    counts.
    """
    best_i, best_j = int(NO_PLACE), int(NO_PLACE)
    fill_detours(legs, par, seq, m, tab, delivery)
    for i in range(m + 1):
        t, load, cost, violation = tab[i, AT], tab[i, CARRIED], tab[i, COST], tab[i, VIOLATION]
        if violation > bound_violation or (violation == bound_violation and cost > bound):
            break  # prefixes only get dearer
        if load > par[CAPACITY]:
            break  # an order on board that is not delivered by now leaves no room for this prefix
        u = 0
        if i > 0:
            u = seq[i - 1]
        last = i
        if pickup > 0:
            t, load, cost, violation = step(legs, stops, par, u, pickup, t, load, cost, violation)
            if load > par[CAPACITY]:
                continue
            u = pickup
            last = m
        for j in range(i, last + 1):
            told = j > i or (pickup == 0 and i > 0)  # the stop before place j is one of the route's
            if told and must_lose(stops, par, tab, j, delivery, t, cost, violation, bound_violation, bound - 1 + ties):
                break
            t2, _, cost2, violation2 = step(legs, stops, par, u, delivery, t, load, cost, violation)
            found_violation, found = rest(
                legs,
                stops,
                par,
                seq,
                m,
                tab,
                j,
                delivery,
                t2,
                cost2,
                violation2,
                bound_violation,
                bound - 1 + ties,
            )
            if found_violation != FAR and (
                found_violation < bound_violation
                or found < bound
                or best_i < 0
                or place_before(seq, m, pickup, delivery, i, j, best_i, best_j)
            ):
                best_i, best_j, bound_violation, bound = i, j, found_violation, found
            if j < last:
                v = seq[j]
                t, load, cost, violation = step(legs, stops, par, u, v, t, load, cost, violation)
                if load > par[CAPACITY]:
                    break
                u = v
    return best_i, best_j, bound_violation, bound


@kernel
def insert_in_turn(
    legs: Legs, stops: Ints, par: Ints, seq: Ints, m: int, tab: Ints, pickups: Ints, order: Ints, n: int, ties: int
) -> tuple[int, int, int]:
    """Insert the n orders listed, each at its best places.

    Returns (length, violation, cost); length -1 if one has none.
    """
    for k in range(n):
        o = order[k]
        fill(legs, stops, par, seq, m, tab)
        i, j, _, _ = best_place(legs, stops, par, seq, m, tab, pickups[o], 2 * o + 2, ties, int(FAR), int(FAR))
        if i < 0:
            return -1, FAR, FAR
        m = put(seq, m, pickups[o], 2 * o + 2, i, j)
    fill(legs, stops, par, seq, m, tab)
    return m, tab[TOTAL, VIOLATION], tab[TOTAL, COST]


@jit
def insert_new(
    legs: Legs, stops: Ints, par: Ints, tab: Ints, pickups: Ints, n_hand: int, n: int, seq: Ints, m: int
) -> tuple[int, int, int]:
    """Insert orders n_hand..n-1 (at most two) into seq.

    Two are tried in both orders. Returns (length, violation, cost).
    """
    order = np.empty(2, np.int64)
    for k in range(n - n_hand):
        order[k] = n_hand + k
    other = np.zeros(len(seq), np.int64)
    for k in range(m):
        other[k] = seq[k]
    length, violation, cost = insert_in_turn(
        legs, stops, par, seq, m, tab, pickups, order, n - n_hand, int(SMALLER_WINS)
    )
    if n - n_hand < 2:
        return length, violation, cost
    order[0], order[1] = n_hand + 1, n_hand
    length2, violation2, cost2 = insert_in_turn(
        legs, stops, par, other, m, tab, pickups, order, n - n_hand, int(SMALLER_WINS)
    )
    better = violation2 < violation or (violation2 == violation and cost2 < cost)
    if not better and length2 > 0 and violation2 == violation and cost2 == cost:
        for k in range(STOPS_MAX):
            if k < length2 and other[k] != seq[k]:
                better = other[k] < seq[k]
                break
    if better:
        for k in range(length2):
            seq[k] = other[k]
        return length2, violation2, cost2
    return length, violation, cost
