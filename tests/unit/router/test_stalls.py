"""Hedging over many requests in simulated time: what stalls are cut to, what that costs, and that a busy fleet hedges
nothing."""

from __future__ import annotations

import heapq
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from router.config import RouterConfig
from tests.unit.router.fleet import answer, instance, name_of
from tests.unit.router.town import Node, Town

if TYPE_CHECKING:
    from fabric.transport import Answer
    from router.dispatch import Attempt
    from tests.unit.router.fleet import Life

SERVICE_S, STALLED_SHARE, STALLED_FACTOR, NODES = 0.010, 0.01, 10.0, 6


class Request:
    """One request: its life, the attempt that is out, and whether it was answered."""

    def __init__(self, life: Life, attempt: Attempt, began_s: float) -> None:
        self.life, self.attempt, self.began_s, self.over = life, attempt, began_s, False


class Stalling(Town):
    """Nodes that stall one request in a hundred, for ten times its length, where it runs first."""

    def __init__(self, ratio: float) -> None:
        super().__init__()
        self.core = type(self.core)(
            7, RouterConfig(seed=1, hedge_ratio=ratio), self.core.staging._own, Random(1), lambda: self.now
        )
        self.nodes = {f"n{number}": Node(SERVICE_S, 0.0004, 1) for number in range(NODES)}
        for name in self.nodes:
            self.add(instance(name))
        self.copies = 0

    def flood(self, load: float, count: int) -> list[float]:
        """Poisson arrivals; how long each took, in seconds."""
        dice, due, took = Random(2), [], []
        at_s, order = self.now, 0

        def put(when_s: float, what: str, request: Request, made: Answer | None = None) -> None:
            nonlocal order
            order += 1
            heapq.heappush(due, (when_s, order, what, request, made))

        def serve(name: str, stall: float) -> tuple[float, Answer]:
            node = self.nodes[name]
            node.service_s = SERVICE_S * stall
            done_s, report, queued_s = node.serve(self.now)
            return done_s, answer(report, compute_us=int(node.service_s * 1e6), queue_us=int(queued_s * 1e6))

        for _ in range(count):
            at_s += dice.expovariate(load * NODES / SERVICE_S)
            while due and due[0][0] <= at_s:
                self._step(due, took, put, serve)
            self.now = at_s
            life = self.life(timeout_s=60.0)
            attempt = self.send(life)
            request = Request(life, attempt, at_s)
            done_s, made = serve(name_of(attempt), STALLED_FACTOR if dice.random() < STALLED_SHARE else 1.0)
            put(done_s, "first", request, made)
            hedger = self.core.hedger
            if hedger is not None and (after_s := hedger.after_s(attempt)) is not None:
                put(at_s + after_s, "late", request)
        while due:
            self._step(due, took, put, serve)
        self.assert_idle()
        return took

    def _step(self, due, took, put, serve) -> None:  # type: ignore[no-untyped-def]
        self.now, _, what, request, made = heapq.heappop(due)
        if request.over:
            return
        if what == "late":
            hedger = self.core.hedger
            assert hedger is not None
            if (tied := hedger.copy(request.attempt)) is None:
                put(self.now + hedger.again_s(request.attempt), "late", request)
                return
            self.copies += 1
            done_s, copied = serve(tied.picked.worker.name, 1.0)
            put(done_s, "second", request, copied)
            return
        if what == "second":
            assert request.attempt.tied is not None
            request.attempt.tied.won = True
        request.over = True
        self.finish(request.life, made)
        took.append(self.now - request.began_s)


def test_hedging_cuts_the_slowest_of_a_thousand_for_a_twentieth_of_the_work() -> None:
    plain, hedged = Stalling(0.0), Stalling(0.05)
    before_s, after_s = plain.flood(0.4, 12_000), hedged.flood(0.4, 12_000)
    assert np.percentile(after_s, 99.9) <= 0.5 * np.percentile(before_s, 99.9)
    assert 0 < hedged.copies <= 0.05 * 12_000 + 1


@pytest.mark.parametrize("load", [0.95])
def test_a_busy_fleet_hedges_next_to_nothing(load: float) -> None:
    busy, quiet = Stalling(0.05), Stalling(0.05)
    busy.flood(load, 6000)
    quiet.flood(0.4, 6000)
    assert busy.copies < quiet.copies
