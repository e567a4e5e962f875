"""Local search: move an order, move one stop, reverse a piece, until nothing helps.

Each move keeps precedence and capacity, is taken only if strictly better, and is tried in one fixed order, so that any
implementation of the same scan ends in the same route. It never makes a route worse. Next: starts.py.
"""

from examples.dispatch.route_plan.insertion import best_place, put
from examples.dispatch.route_plan.jit import kernel
from examples.dispatch.route_plan.layout import (
    AT,
    CAPACITY,
    CARRIED,
    COST,
    FAR,
    FIRST_STAYS,
    FIRST_TO_END,
    LAST_TO_FRONT,
    PASSES_MAX,
    REVERSED,
    TOTAL,
    VIOLATION,
)
from examples.dispatch.route_plan.walk import Ints, Legs, fill, rest, step

KINDS = 3


@kernel
def run_piece(legs: Legs, stops: Ints, par: Ints, seq: Ints, m: int, tab: Ints, low: int, high: int, kind: int) -> bool:
    """Say whether the route with its stops low..high rearranged is strictly better than the table's route.

    kind is REVERSED, LAST_TO_FRONT or FIRST_TO_END.
    """
    bound_violation, bound = tab[TOTAL, VIOLATION], tab[TOTAL, COST] - 1
    t, load, cost, violation = tab[low, AT], tab[low, CARRIED], tab[low, COST], tab[low, VIOLATION]
    u = 0
    if low > 0:
        u = seq[low - 1]
    for k in range(low, high + 1):
        if kind == REVERSED:
            v = seq[low + high - k]
        elif kind == LAST_TO_FRONT:
            v = seq[k - 1] if k > low else seq[high]
        else:
            v = seq[k + 1] if k < high else seq[low]
        t, load, cost, violation = step(legs, stops, par, u, v, t, load, cost, violation)
        if load > par[CAPACITY]:
            return False
        if violation > bound_violation or (violation == bound_violation and cost > bound):
            return False
        u = v
    found, _ = rest(legs, stops, par, seq, m, tab, high + 1, u, t, cost, violation, bound_violation, bound)
    return found != FAR


@kernel
def rearrange(seq: Ints, low: int, high: int, kind: int) -> None:
    """Carry out what run_piece priced."""
    if kind == REVERSED:
        while low < high:
            held = seq[low]
            seq[low] = seq[high]
            seq[high] = held
            low += 1
            high -= 1
    elif kind == LAST_TO_FRONT:
        held = seq[high]
        for k in range(high, low, -1):
            seq[k] = seq[k - 1]
        seq[low] = held
    else:
        held = seq[low]
        for k in range(low, high):
            seq[k] = seq[k + 1]
        seq[high] = held


@kernel
def move_orders(
    legs: Legs,
    stops: Ints,
    par: Ints,
    pickups: Ints,
    n: int,
    seq: Ints,
    m: int,
    tab: Ints,
    spare: Ints,
    spare_tab: Ints,
) -> bool:
    """Take each order out and put it where it is best; the table is of seq before and after."""
    moved = False
    for o in range(n):
        pickup, delivery = pickups[o], 2 * o + 2
        length = 0
        for k in range(m):
            if seq[k] != delivery and seq[k] != pickup:
                spare[length] = seq[k]
                length += 1
        fill(legs, stops, par, spare, length, spare_tab)
        i, j, _, _ = best_place(
            legs,
            stops,
            par,
            spare,
            length,
            spare_tab,
            pickup,
            delivery,
            int(FIRST_STAYS),
            tab[TOTAL, VIOLATION],
            tab[TOTAL, COST],
        )
        if i >= 0:
            put(spare, length, pickup, delivery, i, j)
            for k in range(m):
                seq[k] = spare[k]
            fill(legs, stops, par, seq, m, tab)
            moved = True
    return moved


@kernel
def try_piece(legs: Legs, stops: Ints, par: Ints, seq: Ints, m: int, tab: Ints, low: int, high: int, kind: int) -> bool:
    """Take a rearrangement if it is better, and say whether it was."""
    if not run_piece(legs, stops, par, seq, m, tab, low, high, kind):
        return False
    rearrange(seq, low, high, kind)
    fill(legs, stops, par, seq, m, tab)
    return True


@kernel
def move_stops(legs: Legs, stops: Ints, par: Ints, seq: Ints, m: int, tab: Ints) -> bool:
    """Move single stops, backwards then forwards, never past the other stop of their order."""
    moved = False
    for p in range(m):
        v = seq[p]
        partner = v + 1 if v % 2 == 1 else v - 1
        taken = False
        for q in range(p - 1, -1, -1):
            if seq[q] == partner:
                break
            if try_piece(legs, stops, par, seq, m, tab, q, p, int(LAST_TO_FRONT)):
                taken = True
                break
        if not taken:
            for q in range(p + 1, m):
                if seq[q] == partner:
                    break
                if try_piece(legs, stops, par, seq, m, tab, p, q, int(FIRST_TO_END)):
                    taken = True
                    break
        moved = moved or taken
    return moved


@kernel
def reverse_pieces(legs: Legs, stops: Ints, par: Ints, seq: Ints, m: int, tab: Ints) -> bool:
    """Reverse pieces that hold no order whole."""
    moved = False
    for low in range(m - 1):
        seen = 1 << ((seq[low] - 1) // 2)
        for high in range(low + 1, m):
            order = 1 << ((seq[high] - 1) // 2)
            if seen & order:
                break
            seen |= order
            if high - low > 1 and try_piece(legs, stops, par, seq, m, tab, low, high, int(REVERSED)):
                # The piece holds the same orders as before, so the scan goes on.
                moved = True
    return moved


@kernel
def improve(
    legs: Legs,
    stops: Ints,
    par: Ints,
    pickups: Ints,
    n: int,
    seq: Ints,
    m: int,
    tab: Ints,
    spare: Ints,
    spare_tab: Ints,
) -> tuple[int, int]:
    """Improve seq in place to a local optimum of the three moves. Returns (violation, cost)."""
    fill(legs, stops, par, seq, m, tab)
    idle = 0  # kinds of move that found nothing, one after the other
    for turn in range(KINDS * PASSES_MAX):
        if turn % KINDS == 0:
            moved = move_orders(legs, stops, par, pickups, n, seq, m, tab, spare, spare_tab)
        elif turn % KINDS == 1:
            moved = move_stops(legs, stops, par, seq, m, tab)
        else:
            moved = reverse_pieces(legs, stops, par, seq, m, tab)
        idle = 0 if moved else idle + 1
        if idle == KINDS:
            break
    return tab[TOTAL, VIOLATION], tab[TOTAL, COST]
