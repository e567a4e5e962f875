"""Late binding: requests wait at their routers, and a worker that is free asks a few of them for one.

Nothing is decided when a request arrives but where nobody is busy. A worker that has ended a run asks `ASKS` routers at
random; each tells the request that it would best begin, the worker claims the best of these, and it is sent: there and
back twice, in which the worker stands still. Where none has any, they note that it is idle and send it the next one.
So each request is bound when its run begins, to who begins it, and never runs twice.

Which request that is: with hints, of those that this worker would answer in time the one with the least time left.
Those that would be late come after all of these, and some of them wait for seconds (docs/decisions says what that
buys). Without hints, the oldest. Read `router/simulator/measure.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from router.policies.base import Policy, Task
    from router.simulator.node import Node
    from router.simulator.workload import Trace, Workload

ASKS = 5
"""Routers that a worker asks for each request."""
AGAIN_S = 0.002
"""A worker that found nothing asks others after this long."""
IN_TIME_RUNS = 4.0
"""What is in time: so many usual requests on a worker of the usual speed."""


class PullingWorld(World):  # mutable: a run
    """One run in which workers pull. `dice` are the workers'."""

    def __init__(
        self,
        world: Workload,
        trace: Trace,
        policies: Callable[[Sequence[Node]], list[Policy]],
        dice: Random,
    ) -> None:
        super().__init__(world, trace, 0.0, policies)
        routers = len(world.demand)
        self._dice = dice
        self._routers = range(routers)
        self._hinted = world.hint_error is not None
        self._fastest = max(world.speeds)
        self._in_time_ms = IN_TIME_RUNS * world.work_mean_ms
        self._waiting: list[list[Task]] = [[] for _ in self._routers]
        self._idle: list[dict[int, int]] = [{} for _ in self._routers]
        self._turn = [0] * len(self.nodes)  # rises when a worker is promised a request: what was asked before is void
        for node in self.nodes:
            self._at(0.0, self._ask, node, 0)

    def _want(self, task: Task) -> None:
        task.units = task.hint_ms or 1.0
        idle, turn = self._idle[task.router], self._turn
        free = [number for number, at in idle.items() if turn[number] == at]
        self._idle[task.router] = {number: turn[number] for number in free}
        if free:
            number = min(free, key=self._rate)
            self._give(self.nodes[number], task)
        else:
            self._waiting[task.router].append(task)

    def _rate(self, number: int) -> float:
        return self.nodes[number].rate

    def _give(self, node: Node, task: Task) -> None:
        """Sends a request to a worker that stands still for it."""
        self._turn[node.number] += 1
        task.sent_s, task.tied = self.now, (node.number,)
        self.sent[node.number] += 1
        self._at(self.now + self._reach[task.router][node.number], self._reached, task, node.number)

    def _ask(self, node: Node, turn: int) -> None:
        if self._turn[node.number] != turn:
            return
        asked = tuple(self._dice.sample(self._routers, min(ASKS, len(self._routers))))
        self.reads += len(asked)
        way_s = max(self._reach[router][node.number] for router in asked)
        self._at(self.now + way_s, self._asked, node, turn, asked, way_s)

    def _asked(self, node: Node, turn: int, asked: tuple[int, ...], way_s: float) -> None:
        if self._turn[node.number] != turn:
            return
        found = [(self._key(node, task), router) for router in asked if (task := self._best(node, router)) is not None]
        if found:
            router = min(found)[1]
            self._at(self.now + way_s + self._reach[router][node.number], self._claimed, node, turn, router)
            return
        for router in asked:
            self._idle[router][node.number] = turn
        self._at(self.now + AGAIN_S, self._ask, node, turn)

    def _claimed(self, node: Node, turn: int, router: int) -> None:
        if self._turn[node.number] != turn:
            return
        task = self._best(node, router)
        if task is None:  # another worker was faster
            self._at(self.now + self._reach[router][node.number], self._ask, node, turn)
            return
        self._waiting[router].remove(task)
        self._give(node, task)

    def _best(self, node: Node, router: int) -> Task | None:
        """What this worker would best begin of what waits at a router; None for nothing."""
        waiting = self._waiting[router]
        return min(waiting, key=lambda task: self._key(node, task)) if waiting else None

    def _key(self, node: Node, task: Task) -> tuple[int, float]:
        took_ms = (self.now - task.arrived_s) * 1000.0
        if not self._hinted:
            return 1, -took_ms
        if took_ms + task.units * node.rate > self._in_time_ms:
            return 2, -took_ms
        return 1, -took_ms - task.units / self._fastest

    def _end(self, node: Node) -> None:
        super()._end(node)
        self._ask(node, self._turn[node.number])
