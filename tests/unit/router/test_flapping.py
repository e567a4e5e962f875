"""A tenth of a fleet of 1,000 comes and goes each second, as its registry tells: a pick costs what it costs beside."""

from __future__ import annotations

import time
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import pytest

from discovery.catalogue import Answered, Catalogue
from fabric.deadline import Deadline
from router.attempt import Attempts
from router.dispatch import Attempt
from router.workers import State
from tests.unit.router.fleet import Fleet, NamedLink, body, instance

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.core import Core
    from router.workers import Worker

WORKERS, FLAPPING = 1000, 100
PICKS = 500
"""As many in a simulated second: a router under moderate load."""
BODY = body()


def pick_us(fleet: Fleet, model: str) -> float:
    """CPU microseconds of one pick, its booking included."""
    deadline = Deadline(fleet.now + 10.0)
    attempts = Attempts(model, deadline, idempotent=True, attempts_max=4, backoff=lambda _: 0.001)
    began = time.thread_time_ns()
    attempt = fleet.core._dispatcher.begin(model, BODY, 0, attempts)
    took = time.thread_time_ns() - began
    assert isinstance(attempt, Attempt)
    fleet.core._dispatcher.end(attempt, attempts)
    return took / 1000.0


class Flapped:
    """A router that follows a catalogue, and what its picks cost."""

    def __init__(self) -> None:
        self.everyone = tuple(instance(f"n{number}") for number in range(WORKERS))
        self.fleet = Fleet()
        self.catalogue = Catalogue()
        self.rng, self.now_s = Random(3), 0.0
        self._down: set[int] = set()
        self.told = 0
        self._tell()
        for worker in self.core.table.workers:
            self.core.table.link_up(worker, NamedLink(worker.name))

    @property
    def core(self) -> Core:
        return self.fleet.core

    def _tell(self) -> None:
        there = tuple(one for number, one in enumerate(self.everyone) if number not in self._down)
        changes = self.catalogue.handle(Answered(there), self.now_s)
        self.told += len(changes)
        with self.core.lock:
            self.core.table.changed(changes)

    def flap(self) -> None:
        """A second passes, and 100 workers come or go."""
        self.now_s += 1.0
        self._down ^= set(self.rng.sample(range(WORKERS), FLAPPING))
        self._tell()

    def second_us(self, links: int = 0) -> float:
        """Mean CPU microseconds of the picks of one second, while so many links come or go between them."""
        took, lost = 0.0, []
        for number in range(PICKS):
            if links and number % (PICKS // links) == 0:
                lost.append(self._lose_a_link())
                if len(lost) > links // 10:
                    back = lost.pop(0)
                    self.core.table.link_up(back, NamedLink(back.name))
            took += pick_us(self.fleet, "plan")
        for back in lost:
            self.core.table.link_up(back, NamedLink(back.name))
        return took / PICKS

    def _lose_a_link(self) -> Worker:
        while True:
            worker = self.rng.choice(self.core.table.workers)
            if worker.link is not None and worker.state is State.READY:
                self.core.table.link_lost(worker, worker.link)
                return worker


@pytest.mark.parametrize(("rounds", "factor"), [(7, 1.6), pytest.param(60, 1.25, marks=pytest.mark.long)])
@pytest.mark.parametrize("what", ["entries", "links"])
def test_the_cost_of_a_pick_does_not_move(
    what: str, rounds: int, factor: float, record_property: Callable[[str, object], None]
) -> None:
    """`entries`: the registry tells, in one answer a second; `links`: each flap ends a link, between two picks."""
    flapped = Flapped()
    flapped.second_us()
    still, moving = [], []
    for _ in range(rounds):  # in turns, so that a busy machine slows both
        still.append(flapped.second_us())
        if what == "entries":
            flapped.flap()
            moving.append(flapped.second_us())
        else:
            moving.append(flapped.second_us(FLAPPING))
    told = f"{median(still):.1f} us beside a still fleet, {median(moving):.1f} us beside one in motion"
    record_property("a pick", told)
    assert median(moving) <= factor * median(still), told
    assert what == "links" or flapped.told >= rounds * FLAPPING
