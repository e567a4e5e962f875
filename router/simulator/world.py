"""The simulated world: events in the order of their instants, between routers that choose and nodes that work.

A request arrives at its router, which may read some workers (there and back), then sends it; it waits and runs at its
worker, and the answer goes back. Tied requests go to several workers, and the first that begins one has the others
withdraw it, one way to the router and one way on: where two begin within that time, both run. A router may also read
workers beside a request that it has sent, and tie it with one of them while it waits; or send a copy of one that is
late, of which those that wait are withdrawn when an answer is there. Everything that takes time on the
wire takes it here. Nothing is drawn while a run lasts but what policies draw from their own sources.
Read `router/simulator/measure.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from router.policies.base import Answered, Task
from router.simulator.node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.policies.base import Policy, Report
    from router.simulator.workload import Trace, Workload

TOLD_EVERY = 500
"""Answers between two words of how far a run is: about a third of a second of the slowest policy."""


class World:  # mutable: a run
    """One run of one trace. `policies` makes the policy of each router, given the nodes."""

    def __init__(
        self, world: Workload, trace: Trace, snapshot_s: float, policies: Callable[[Sequence[Node]], list[Policy]]
    ) -> None:
        self.world = world
        self.nodes = [Node(number, world, trace.spells[number]) for number in range(len(world.speeds))]
        self.policies = policies(self.nodes)
        self.tasks: list[Task] = []
        self.reads = self.probes = self.wasted = 0
        self.sent: list[int] = [0] * len(world.speeds)
        self.now = 0.0
        self._trace = trace
        self._snapshot_s = snapshot_s
        self._reach = [world.reach_s(router) for router in range(len(world.demand))]
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._left = world.requests

    def run(self, tell: Callable[[float], None] | None = None) -> None:
        """Runs until each request has its answer. `tell` is told now and then which part of them has."""
        told_at = self._left
        self._at(self._trace.at_s[0], self._arrive, 0)
        if self._snapshot_s:
            self._at(0.0, self._snapshot)
        heap = self._heap
        while self._left:
            at_s, _, act, arguments = heappop(heap)
            self.now = at_s
            act(*arguments)
            if tell is not None and 0 < self._left <= told_at - TOLD_EVERY:
                told_at = self._left
                tell(1.0 - told_at / self.world.requests)

    def _at(self, at_s: float, act: Callable[..., None], *arguments: Any) -> None:
        self._order += 1
        heappush(self._heap, (at_s, self._order, act, arguments))

    def _arrive(self, number: int) -> None:
        trace = self._trace
        task = Task(number, trace.router[number], self.now, trace.work_ms[number], trace.hint_ms[number])
        task.stalled = trace.stalled[number]
        self.tasks.append(task)
        if number + 1 < len(trace.at_s):
            self._at(trace.at_s[number + 1], self._arrive, number + 1)
        self._want(task)

    def _want(self, task: Task) -> None:
        wanted = self.policies[task.router].wants(task, self.now)
        if wanted:
            self.reads += len(wanted)
            reach = self._reach[task.router]
            far_s = max(reach[worker] for worker in wanted)
            self._at(self.now + far_s, self._read, task, wanted, far_s)
        else:
            self._choose(task, ())

    def _read(self, task: Task, wanted: tuple[int, ...], back_s: float) -> None:
        reports = tuple(self.nodes[worker].report(task.router, self.now) for worker in wanted)
        self._at(self.now + back_s, self._choose, task, reports)

    def _choose(self, task: Task, reports: tuple[Report, ...]) -> None:
        policy = self.policies[task.router]
        chosen = policy.choose(task, reports, self.now)
        if not chosen:  # it wants to read more
            self._want(task)
            return
        task.sent_s = self.now
        task.tied = chosen
        reach = self._reach[task.router]
        for worker in chosen:
            self.sent[worker] += 1
            self._at(self.now + reach[worker], self._reached, task, worker)
        beside = policy.beside(task)
        if beside:
            self.reads += len(beside)
            far_s = max(reach[worker] for worker in beside)
            self._at(self.now + far_s, self._read_beside, task, beside, far_s)
        late_s = policy.late_s(task)
        if late_s is not None:
            self._at(self.now + late_s, self._late, task)
        for worker in policy.probes(self.now):
            self.probes += 1
            self._at(self.now + reach[worker], self._probe, task.router, worker)

    def _read_beside(self, task: Task, wanted: tuple[int, ...], back_s: float) -> None:
        reports = tuple(self.nodes[worker].report(task.router, self.now) for worker in wanted)
        self._at(self.now + back_s, self._tie, task, reports)

    def _tie(self, task: Task, reports: tuple[Report, ...]) -> None:
        for worker in self.policies[task.router].tie(task, reports, self.now):
            task.tied = (*task.tied, worker)
            self.sent[worker] += 1
            self._at(self.now + self._reach[task.router][worker], self._reached, task, worker)

    def _late(self, task: Task) -> None:
        if task.done_s >= 0.0:
            return
        wanted = self.policies[task.router].look(task, self.now)
        if wanted:
            reach = self._reach[task.router]
            self.reads += len(wanted)
            far_s = max(reach[worker] for worker in wanted)
            self._at(self.now + far_s, self._looked, task, wanted, far_s)
        else:
            self._copy(task, ())

    def _looked(self, task: Task, wanted: tuple[int, ...], back_s: float) -> None:
        reports = tuple(self.nodes[worker].report(task.router, self.now) for worker in wanted)
        self._at(self.now + back_s, self._copy, task, reports)

    def _copy(self, task: Task, reports: tuple[Report, ...]) -> None:
        if task.done_s >= 0.0:
            return
        copied_to, again_s = self.policies[task.router].late(task, reports, self.now)
        for worker in copied_to:
            task.copied_to = (*task.copied_to, worker)
            self.sent[worker] += 1
            self._at(self.now + self._reach[task.router][worker], self._reached, task, worker)
        if again_s is not None:
            self._at(self.now + again_s, self._late, task)

    def _reached(self, task: Task, worker: int) -> None:
        node = self.nodes[worker]
        node.take(task, self.now)
        self._begin(node)

    def _begin(self, node: Node) -> None:
        ends_s = node.begin(self.now)
        if ends_s is None:
            return
        self._at(ends_s, self._end, node)
        for task in node.running:
            if len(task.tied) > 1:
                reach = self._reach[task.router]
                for worker in task.tied:
                    if worker != node.number:
                        at_s = self.now + reach[node.number] + reach[worker]
                        self._at(at_s, self._withdraw, task, self.nodes[worker])

    @staticmethod
    def _withdraw(task: Task, node: Node) -> None:
        node.withdraw(task)

    def _end(self, node: Node) -> None:
        began_s = node.began_s
        batch = node.end(self.now)
        for task in batch:
            if task.worker >= 0:
                self.wasted += 1
                continue
            task.worker = node.number
            report = node.report(task.router, self.now)
            at_s = self.now + self._reach[task.router][node.number]
            self._at(at_s, self._answer, task, report, began_s, (self.now - began_s) * 1000.0)
        self._begin(node)

    def _answer(self, task: Task, report: Report, began_s: float, compute_ms: float) -> None:
        task.done_s = self.now
        self._left -= 1
        if task.copied_to:
            reach = self._reach[task.router]
            for worker in (*task.tied, *task.copied_to):
                if worker != task.worker:
                    self._at(self.now + reach[worker], self._withdraw, task, self.nodes[worker])
        took_ms = (self.now - task.sent_s) * 1000.0
        queue_ms = max(0.0, (began_s - task.sent_s - self._reach[task.router][task.worker]) * 1000.0)
        answer = Answered(task.worker, took_ms, compute_ms, queue_ms, report)
        self.policies[task.router].answered(task, answer, self.now)

    def _probe(self, router: int, worker: int) -> None:
        report = self.nodes[worker].report(router, self.now)
        self._at(self.now + self._reach[router][worker], self._probed, router, report)

    def _probed(self, router: int, report: Report) -> None:
        self.policies[router].probed(report, self.now)

    def _snapshot(self) -> None:
        for router, policy in enumerate(self.policies):
            for node in self.nodes:
                policy.probed(node.report(router, self.now), self.now)
        self._at(self.now + self._snapshot_s, self._snapshot)
