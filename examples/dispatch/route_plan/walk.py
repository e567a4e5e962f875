"""Walk a route and price it: the arithmetic that every solver shares.

A route is a sequence of stop codes. Its worth is the pair (violation, cost), compared in that order: violation counts
the seconds by which hard time windows are missed (always 0 when windows are soft), cost is J. All is int64; nothing
rounds. A prefix table keeps, for each place k of a route, the state before its k-th stop and what the rest from k on
costs, so that a changed route is priced from the first changed stop only, and given up as soon as it must lose.
Next: insertion.py.
"""

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.jit import kernel, kernel_inlined
from examples.dispatch.route_plan.layout import (
    ARRIVE,
    AT,
    CAPACITY,
    CARRIED,
    COST,
    DUE,
    END,
    FAR,
    HARD,
    HAS_END,
    LOAD,
    LOAD_START,
    PRICE,
    READY,
    SERVICE,
    START,
    TAIL_LATE,
    TAIL_METRES,
    TAIL_PRICE,
    TAIL_VIOLATION,
    TAIL_WAIT,
    TOTAL,
    VIOLATION,
    A,
    C,
    H,
)

Ints = NDArray[np.int64]
Legs = NDArray[np.int32]  # [STRIDE, STRIDE, 2]: seconds and metres from stop to stop


@kernel_inlined
def step(
    legs: Legs, stops: Ints, par: Ints, u: int, v: int, t: int, load: int, cost: int, violation: int
) -> tuple[int, int, int, int]:
    """Go from u to v, wait, serve. Returns (leave time, load, cost, violation)."""
    arrive = t + legs[u, v, 0]
    cost += par[A] * legs[u, v, 1]
    late = arrive - stops[v, DUE]
    if late > 0:
        cost += stops[v, PRICE] * late
        violation += par[HARD] * late
    wait = stops[v, READY] - arrive
    if wait > 0:
        cost += par[C] * wait
        arrive += wait
    return arrive + stops[v, SERVICE], load + stops[v, LOAD], cost, violation


@kernel_inlined
def finish(legs: Legs, stops: Ints, par: Ints, u: int, t: int, cost: int, violation: int) -> tuple[int, int, int]:
    """Close a route whose last stop is u. Returns (finish time, cost, violation)."""
    if par[HAS_END] != 0:
        t += legs[u, END, 0]
        cost += par[A] * legs[u, END, 1]
        late = t - stops[END, DUE]
        if late > 0:
            violation += par[HARD] * late
    return t, cost + par[H] * t, violation


@kernel
def fill(legs: Legs, stops: Ints, par: Ints, seq: Ints, m: int, tab: Ints) -> bool:
    """Fill the prefix table of a route of m stops. Returns False where it overloads the rider."""
    u = 0
    t, load, cost, violation = par[START], par[LOAD_START], 0, 0
    fits = load <= par[CAPACITY]
    for k in range(m):
        v = seq[k]
        tab[k, AT], tab[k, CARRIED], tab[k, COST], tab[k, VIOLATION] = t, load, cost, violation
        tab[k, ARRIVE] = t + legs[u, v, 0]
        t, load, cost, violation = step(legs, stops, par, u, v, t, load, cost, violation)
        fits = fits and load <= par[CAPACITY]
        u = v
    tab[m, AT], tab[m, CARRIED], tab[m, COST], tab[m, VIOLATION] = t, load, cost, violation
    end, total, total_violation = finish(legs, stops, par, u, t, cost, violation)
    tab[m, ARRIVE] = end
    tab[m, TAIL_METRES], tab[m, TAIL_LATE], tab[m, TAIL_VIOLATION] = 0, 0, total_violation - violation
    tab[m, TAIL_WAIT], tab[m, TAIL_PRICE] = 0, par[H]
    tab[TOTAL, AT], tab[TOTAL, CARRIED], tab[TOTAL, COST], tab[TOTAL, VIOLATION] = end, load, total, total_violation
    metres, late_cost, late_violation = 0, 0, tab[m, TAIL_VIOLATION]
    wait, price = 0, par[H]
    following = END
    for k in range(m - 1, -1, -1):
        v = seq[k]
        if following != END or par[HAS_END] != 0:
            metres += par[A] * legs[v, following, 1]
        late = tab[k, ARRIVE] - stops[v, DUE]
        if late > 0:
            late_cost += stops[v, PRICE] * late
            late_violation += par[HARD] * late
        if late >= 0:
            price += stops[v, PRICE]
        wait += max(0, stops[v, READY] - tab[k, ARRIVE])
        tab[k, TAIL_WAIT], tab[k, TAIL_PRICE] = wait, price
        tab[k, TAIL_METRES], tab[k, TAIL_LATE], tab[k, TAIL_VIOLATION] = metres, late_cost, late_violation
        following = v
    return bool(fits)


@kernel
def rest(
    legs: Legs,
    stops: Ints,
    par: Ints,
    seq: Ints,
    m: int,
    tab: Ints,
    k: int,
    u: int,
    t: int,
    cost: int,
    violation: int,
    bound_violation: int,
    bound: int,
) -> tuple[int, int]:
    """Serve seq[k:] after leaving u at t. Returns (violation, cost), or (FAR, FAR) once they must exceed the bound.

    The stops before k must be those of the table's route in any order, plus whole orders already delivered, so that the
    load from k on is the table's. Arriving no sooner than the table's route means that each later stop is no sooner
    either (leave times grow with arrival times), hence no less late: that makes the table's tail a lower bound. Waits
    can swallow a delay only once, so what is beyond all waits to come is paid by every stop that was late already.
    """
    while k < m:
        v = seq[k]
        arrive = t + legs[u, v, 0]
        least = cost + par[A] * legs[u, v, 1] + tab[k, TAIL_METRES]
        least_violation = violation
        if arrive >= tab[k, ARRIVE]:
            delay = max(0, arrive - tab[k, ARRIVE] - tab[k, TAIL_WAIT])
            least += tab[k, TAIL_LATE] + par[H] * tab[TOTAL, AT] + tab[k, TAIL_PRICE] * delay
            least_violation += tab[k, TAIL_VIOLATION]
        if least_violation > bound_violation or (least_violation == bound_violation and least > bound):
            return FAR, FAR
        t, _, cost, violation = step(legs, stops, par, u, v, t, 0, cost, violation)
        u = v
        k += 1
        if t == tab[k, AT]:  # in step with the table's route: the rest is known
            cost += tab[TOTAL, COST] - tab[k, COST]
            violation += tab[TOTAL, VIOLATION] - tab[k, VIOLATION]
            break
    else:
        _, cost, violation = finish(legs, stops, par, u, t, cost, violation)
    if violation > bound_violation or (violation == bound_violation and cost > bound):
        return FAR, FAR
    return violation, cost


@kernel
def before(first: Ints, second: Ints, m: int) -> bool:
    """Say whether the first sequence is lexicographically smaller."""
    for k in range(m):
        if first[k] != second[k]:
            return bool(first[k] < second[k])
    return False
