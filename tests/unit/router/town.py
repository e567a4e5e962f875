"""Nodes in simulated time around a real core: each is a queue with executors, and reports its load as a node does.

Callers run in a closed loop: each sends, waits for its answer, and sends again. Nothing here picks: the core does.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.frame import Load
from fabric.transport import WireName
from tests.unit.router.fleet import Fleet, answer, instance, name_of

if TYPE_CHECKING:
    from router.dispatch import Attempt
    from tests.unit.router.fleet import Life


class Node:  # mutable: works
    """A node: `service_s` of one request on one executor, `wire_s` there and back."""

    def __init__(self, service_s: float, wire_s: float, executors: int) -> None:
        self.service_s, self.wire_s = service_s, wire_s
        self.free_s = [0.0] * executors
        self.sequence = self.accepted = 0

    def serve(self, now: float) -> tuple[float, Load, float]:
        """Takes a request; tells when its answer is there, the report that comes with it, and how long it queued."""
        self.sequence += 1
        self.accepted += 1
        arrived_s = now + self.wire_s / 2
        at = min(range(len(self.free_s)), key=self.free_s.__getitem__)
        begun_s = max(self.free_s[at], arrived_s)
        self.free_s[at] = begun_s + self.service_s
        # As a node does, it leaves out the request that the report comes with.
        work_s = sum(max(0.0, free_s - begun_s) for free_s in self.free_s) - self.service_s
        load = Load(self.sequence, self.accepted, int(work_s * 1e6), len(self.free_s))
        return self.free_s[at] + self.wire_s / 2, load, begun_s - arrived_s


@dataclass(frozen=True, slots=True)
class Served:
    """One request: when it began, how long it took, and who answered it."""

    began_s: float
    took_s: float
    worker: str


class Town(Fleet):
    """A fleet whose nodes answer by themselves."""

    def __init__(self, **nodes: Node) -> None:
        super().__init__()
        self.nodes = nodes
        for name in nodes:
            self.add(instance(name), WireName.LOCAL if name.startswith("near") else WireName.RPC)

    def wave(self, count: int) -> list[Served]:
        """Sends so many requests at one instant, and lets all of them be answered."""
        return self.run(count, count)

    def run(self, callers: int, count: int, pause_s: float = 0.0) -> list[Served]:
        """Lets `callers` send `count` requests in all, each `pause_s` after its last answer."""
        served: list[Served] = []
        due: list[tuple[float, int, Life, Attempt, object]] = []
        begun = 0

        def begin() -> None:
            nonlocal begun
            begun += 1
            life = self.life(timeout_s=60.0)
            step = self.send(life)
            node = self.nodes[name_of(step)]
            at_s, load, queued_s = node.serve(self.now)
            wire = step.link.wire
            assert wire is not None
            made = answer(load, compute_us=int(node.service_s * 1e6), queue_us=int(queued_s * 1e6), wire=wire)
            heapq.heappush(due, (at_s, begun, life, step, made))

        for _ in range(callers):
            begin()
        while due:
            at_s, _, life, step, made = heapq.heappop(due)
            self.now = at_s
            self.finish(life, made)  # type: ignore[arg-type]
            served.append(Served(step.began_s, at_s - step.began_s, name_of(step)))
            if begun < count:
                self.now += pause_s
                begin()
        self.assert_idle()
        return served


def shares(served: list[Served]) -> dict[str, float]:
    """Which share of the requests each node answered."""
    counts = Counter(one.worker for one in served)
    return {name: count / len(served) for name, count in counts.items()}
