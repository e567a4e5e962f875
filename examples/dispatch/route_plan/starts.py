"""two_stage: build routes from several orders of insertion, improve each, keep the best.

The first four orders follow rules (due, nearest pickup, farthest delivery, ready), the others are shuffles that
depend on (seed, task number, start number) alone, so a task's answer does not depend on the batch it came in. Equal
worth goes to the lower start number. It never looks at a clock. Next: branch.py.
"""

import numpy as np

from examples.dispatch.route_plan.improve import improve
from examples.dispatch.route_plan.insertion import insert_in_turn
from examples.dispatch.route_plan.jit import jit, kernel
from examples.dispatch.route_plan.layout import (
    DUE,
    FAR,
    FIRST_STAYS,
    PREFIX_FIELDS,
    READY,
    STARTS_MAX,
    STOPS_MAX,
    STRIDE,
)
from examples.dispatch.route_plan.walk import Ints, Legs

RULES = 4
_GAMMA = np.uint64(0x9E3779B97F4A7C15)  # splitmix64's constants (Steele, Lea, Flood 2014)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)
_S27 = np.uint64(27)
_S30 = np.uint64(30)
_S31 = np.uint64(31)
_S33 = np.uint64(33)


@kernel
def mix(z: np.uint64) -> np.uint64:
    """Return splitmix64's output for the state z."""
    z = (z ^ (z >> _S30)) * _MIX_A
    z = (z ^ (z >> _S27)) * _MIX_B
    return z ^ (z >> _S31)


@kernel
def shuffle(order: Ints, n: int, seed: int, task: int, start: int) -> None:
    """Shuffle by Fisher and Yates; the state starts at mix(mix(mix(seed) + task) + start)."""
    state = mix(mix(mix(np.uint64(seed)) + np.uint64(task)) + np.uint64(start))
    for k in range(n - 1, 0, -1):
        state = state + _GAMMA
        other = np.int64(mix(state) >> _S33) % (k + 1)
        held = order[k]
        order[k] = order[other]
        order[other] = held


@kernel
def rule_key(legs: Legs, stops: Ints, pickups: Ints, o: int, rule: int) -> int:
    """Return what a rule sorts by, ascending."""
    delivery = 2 * o + 2
    first = pickups[o] if pickups[o] > 0 else delivery
    if rule == 0:
        return int(stops[delivery, DUE])
    if rule == 1:
        return int(legs[0, first, 1])
    if rule == 2:
        return -int(legs[0, delivery, 1])
    return int(stops[first, READY])


@kernel
def start_order(
    legs: Legs, stops: Ints, pickups: Ints, n: int, seed: int, task: int, start: int, order: Ints, keys: Ints
) -> None:
    """Write the start's order of insertion: orders on board first, for their load binds until they are placed."""
    for o in range(n):
        order[o] = o
    if start >= RULES:
        shuffle(order, n, seed, task, start)
    for o in range(n):
        keys[o] = 0 if start >= RULES else rule_key(legs, stops, pickups, o, start)
    for k in range(1, n):  # a stable insertion sort by (picked up, key)
        held = order[k]
        waits = pickups[held] > 0
        q = k - 1
        while q >= 0:
            other_waits = pickups[order[q]] > 0
            if (other_waits and not waits) or (other_waits == waits and keys[order[q]] > keys[held]):
                order[q + 1] = order[q]
                q -= 1
            else:
                break
        order[q + 1] = held


@kernel
def seen_before(built: Ints, start: int, seq: Ints, m: int) -> bool:
    """Say whether an earlier start built the same route; improving it again would end the same."""
    for s in range(start):
        same = True
        for k in range(m):
            if built[s, k] != seq[k]:
                same = False
                break
        if same:
            return True
    return False


@jit
def two_stage(
    legs: Legs, stops: Ints, par: Ints, pickups: Ints, n: int, starts: int, seed: int, task: int, best: Ints
) -> tuple[int, int, int]:
    """Write the best route found into best.

    Returns (length, violation, cost); length -1 where no route fits the load.
    """
    seq = np.zeros(STOPS_MAX + 2, np.int64)
    spare = np.zeros(STOPS_MAX + 2, np.int64)
    order = np.zeros(STOPS_MAX, np.int64)
    keys = np.zeros(STOPS_MAX, np.int64)
    tab = np.zeros((STRIDE, PREFIX_FIELDS), np.int64)
    spare_tab = np.zeros((STRIDE, PREFIX_FIELDS), np.int64)
    built = np.zeros((STARTS_MAX, STOPS_MAX), np.int64)
    best_length, best_violation, best_cost = -1, FAR, FAR
    for start in range(starts):
        start_order(legs, stops, pickups, n, seed, task, start, order, keys)
        m, _, _ = insert_in_turn(legs, stops, par, seq, 0, tab, pickups, order, n, int(FIRST_STAYS))
        for k in range(STOPS_MAX):
            built[start, k] = seq[k] if k < m else -1
        if m < 0 or seen_before(built, start, seq, m):
            continue
        violation, cost = improve(legs, stops, par, pickups, n, seq, m, tab, spare, spare_tab)
        if violation < best_violation or (violation == best_violation and cost < best_cost):
            best_length, best_violation, best_cost = m, violation, cost
            for k in range(m):
                best[k] = seq[k]
    return best_length, best_violation, best_cost
