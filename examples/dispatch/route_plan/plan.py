"""Plan one loaded task with the solver asked for, and check the route it starts from.

It only joins the solvers; what they share is in walk.py, how tasks arrive is load.py. Next: batch.py.
"""

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.branch import branch_and_bound
from examples.dispatch.route_plan.insertion import insert_new
from examples.dispatch.route_plan.jit import jit
from examples.dispatch.route_plan.layout import (
    COST,
    EXACT_ORDERS_AUTO,
    FAR,
    HARD,
    PREFIX_FIELDS,
    STRIDE,
    TOTAL,
    VIOLATION,
    A,
    B,
    C,
    H,
    Option,
    Solver,
)
from examples.dispatch.route_plan.starts import RULES, two_stage
from examples.dispatch.route_plan.subsets import shortest
from examples.dispatch.route_plan.walk import Ints, Legs, fill

_SOLVER, _STARTS, _SEED = int(Option.SOLVER), int(Option.STARTS), int(Option.SEED)
_NODES_MAX, _SUBSET_ORDERS_MAX = int(Option.NODES_MAX), int(Option.SUBSET_ORDERS_MAX)
_INSERT, _TWO_STAGE, _EXACT = int(Solver.INSERT), int(Solver.TWO_STAGE), int(Solver.EXACT)


@jit
def take_route(route: NDArray[np.uint8], first: int, last: int, pickups: Ints, n: int, seq: Ints) -> int:
    """Copy a route in hand into seq if it serves the n orders in hand rightly. Returns its length, or -1."""
    phases = np.zeros(n + 1, np.int64)
    todo = 0
    for o in range(n):
        phases[o] = 0 if pickups[o] > 0 else 1
        todo += 2 - phases[o]
    if last - first != todo:
        return -1
    for k in range(todo):
        v = int(route[first + k])
        if v < 1 or v > 2 * n or phases[(v - 1) // 2] != (v - 1) % 2:
            return -1
        phases[(v - 1) // 2] += 1
        seq[k] = v
    return todo


@jit
def exact(
    legs: Legs, stops: Ints, par: Ints, pickups: Ints, n: int, options: Ints, task: int, tab: Ints, seq: Ints
) -> tuple[int, int, bool]:
    """Find the cheapest route. Returns (length or -1, cost, proved)."""
    by_metres = par[B] == 0 and par[C] == 0 and par[H] == 0 and par[HARD] == 0 and par[A] > 0
    if by_metres and n <= options[_SUBSET_ORDERS_MAX]:
        m = shortest(legs, stops, par, pickups, n, seq)
        if m > 0:
            fill(legs, stops, par, seq, m, tab)
        return m, tab[TOTAL, COST], True
    starts = options[_STARTS]
    if n <= EXACT_ORDERS_AUTO:  # the search itself costs less than more starts would save
        starts = min(starts, RULES)
    m, violation, cost = two_stage(legs, stops, par, pickups, n, starts, options[_SEED], task, seq)
    if m < 0 or violation > 0:
        cost = FAR
    cost, finished = branch_and_bound(legs, stops, par, pickups, n, options[_NODES_MAX], seq, cost)
    length = 0
    for o in range(n):
        length += 2 if pickups[o] > 0 else 1
    return (length if cost < FAR else -1), cost, finished


@jit
def plan(
    legs: Legs,
    stops: Ints,
    par: Ints,
    pickups: Ints,
    n_hand: int,
    n: int,
    options: Ints,
    task: int,
    seq: Ints,
    m_hand: int,
) -> tuple[int, int, bool]:
    """Plan n orders, of which n_hand are in hand. Returns (length or -1 where infeasible, cost, proved).

    seq holds the route in hand (m_hand stops) if the solver is `insert`, and the planned route afterwards.
    """
    tab = np.zeros((STRIDE, PREFIX_FIELDS), np.int64)
    solver = options[_SOLVER]
    if n == 0 or (solver == _INSERT and n == n_hand):
        fits = fill(legs, stops, par, seq, m_hand, tab)
        return (m_hand if fits and tab[TOTAL, VIOLATION] == 0 else -1), tab[TOTAL, COST], False
    if solver == _INSERT:
        m, violation, cost = insert_new(legs, stops, par, tab, pickups, n_hand, n, seq, m_hand)
        return (m if violation == 0 else -1), cost, False
    if solver == _EXACT or (solver != _TWO_STAGE and n <= EXACT_ORDERS_AUTO):
        return exact(legs, stops, par, pickups, n, options, task, tab, seq)
    m, violation, cost = two_stage(legs, stops, par, pickups, n, options[_STARTS], options[_SEED], task, seq)
    return (m if violation == 0 else -1), cost, False
