"""An independent route planner in plain Python: it tries everything and computes J from its definition, never from
kernels.

It shares nothing with examples.dispatch.route_plan but the values that describe a task. The tests compare the two.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from examples.dispatch.route_plan import Options
from examples.dispatch.route_plan.build import OrderRow, Task

Sequence = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a sequence comes to."""

    cost: int
    metres: int
    arrivals: tuple[int, ...]
    late: tuple[int, ...]
    feasible: bool


class World:
    """A task with its orders and legs: legs(u, v) = (seconds, metres) between stop codes, 'end' for the end stop."""

    def __init__(self, task: Task, options: Options) -> None:
        self.task = task
        self.options = options
        self.orders: list[OrderRow] = [*task.hand, *task.new]
        self.has_end = task.rider.end is not None
        self.seconds = None if task.seconds is None else task.seconds.tolist()
        self.metres = None if task.metres is None else task.metres.tolist()

    def leg(self, u: int | str, v: int | str) -> tuple[int, int]:
        task = self.task
        if self.seconds is not None and self.metres is not None:
            end = 2 * len(self.orders) + 1
            a, b = end if u == "end" else int(u), end if v == "end" else int(v)
            return self.seconds[a][b], self.metres[a][b]
        (ax, ay), (bx, by) = self.spot(u), self.spot(v)
        straight = math.sqrt(float((ax - bx) ** 2 + (ay - by) ** 2))
        metres = math.ceil(self.options.detour_permille / 1000.0 * straight)
        return -(-metres * 60 // task.rider.speed), metres

    def spot(self, stop: int | str) -> tuple[int, int]:
        rider = self.task.rider
        if stop == "end":
            assert rider.end is not None
            return rider.end
        if stop == 0:
            return rider.x, rider.y
        order = self.orders[(int(stop) - 1) // 2]
        return order.pickup if int(stop) % 2 else order.delivery

    def evaluate(self, sequence: Sequence) -> Outcome:
        options, rider = self.options, self.task.rider
        load = sum(order.load for order in self.orders if order.on_board)
        feasible = load <= rider.capacity
        now, here, metres, wait, weighted = rider.start, 0, 0, 0, 0
        arrivals, late = [-1] * len(self.orders), [0] * len(self.orders)
        for stop in sequence:
            order, index = self.orders[(stop - 1) // 2], (stop - 1) // 2
            seconds, way = self.leg(here, stop)
            metres += way
            arrive = now + seconds
            if stop % 2:
                begin, service, load, due = (
                    max(arrive, order.ready),
                    order.pickup_s,
                    load + order.load,
                    order.pickup_due,
                )
            else:
                begin, service, load, due = (
                    max(arrive, order.delivery_ready),
                    order.delivery_s,
                    load - order.load,
                    order.due,
                )
                arrivals[index], late[index] = arrive, max(0, arrive - order.due)
                weighted += order.weight * late[index]
            feasible = feasible and load <= rider.capacity and not (options.hard_tw and arrive > due)
            wait += begin - arrive
            now, here = begin + service, stop
        if self.has_end:
            seconds, way = self.leg(here, "end")
            now, metres = now + seconds, metres + way
            feasible = feasible and not (options.hard_tw and now > rider.end_due)
        cost = options.metre_cost * metres + options.late_cost * weighted + options.wait_cost * wait
        return Outcome(cost + options.finish_cost * now, metres, tuple(arrivals), tuple(late), feasible)


def sequences(orders: list[OrderRow]) -> Iterator[Sequence]:
    """Yield every sequence that keeps pickups before deliveries, in lexicographic order."""
    wanted = sum(1 if order.on_board else 2 for order in orders)

    def grow(prefix: list[int], ready: frozenset[int]) -> Iterator[Sequence]:
        if len(prefix) == wanted:
            yield tuple(prefix)
        for stop in sorted(ready):
            after = ready - {stop}
            yield from grow([*prefix, stop], after | {stop + 1} if stop % 2 else after)

    yield from grow([], frozenset(2 * i + 2 if order.on_board else 2 * i + 1 for i, order in enumerate(orders)))


def brute_force(world: World) -> tuple[int, Sequence] | None:
    """Return the least (J, sequence), or None where no sequence is feasible."""
    best: tuple[int, Sequence] | None = None
    for sequence in sequences(world.orders):
        outcome = world.evaluate(sequence)
        if outcome.feasible and (best is None or outcome.cost < best[0]):
            best = outcome.cost, sequence
    return best


def every_place(world: World, route: Sequence, order: int) -> tuple[int, Sequence] | None:
    """Insert one order (its number among all) at every place of a route; return the least (J, sequence)."""
    found = []
    for i in range(len(route) + 1):
        for j in range(i, len(route) + 1):
            sequence = (*route[:i], 2 * order + 1, *route[i:j], 2 * order + 2, *route[j:])
            outcome = world.evaluate(sequence)
            if outcome.feasible:
                found.append((outcome.cost, sequence))
    return min(found, default=None)
