"""One and a half times what the workers can do: what is taken is in time, all stay busy, the least urgent go first."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import pytest

from fabric import errors
from fabric.deadline import Deadline
from fabric.errors import Fate
from router.dispatch import Attempt
from tests.unit.router.fleet import answer, body, name_of
from tests.unit.router.town import Node, Town

if TYPE_CHECKING:
    from fabric.transport import Answer
    from tests.unit.router.fleet import Life

SERVICE_S, TIMEOUT_S, NODES = 0.010, 0.2, 4
URGENT, PATIENT = 1, 255


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one request: `took_s` is None where it was refused."""

    priority: int
    took_s: float | None


def flood(load: float, seconds: float) -> tuple[list[Outcome], float]:
    """Poisson arrivals at so many times the capacity; the outcomes, and when the last answer came."""
    town, dice = Town(**{f"n{number}": Node(SERVICE_S, 0.0004, 1) for number in range(NODES)}), Random(1)
    town.run(8, 200)
    begin_s = town.now
    due: list[tuple[float, int, Life, Answer, int, float]] = []
    found: list[Outcome] = []
    fates: set[Fate] = set()
    at_s, number = begin_s, 0
    while at_s < begin_s + seconds:
        at_s += dice.expovariate(load * NODES / SERVICE_S)
        number += 1
        while due and due[0][0] <= at_s:
            _finish(town, heapq.heappop(due), found)
        town.now = at_s
        priority = dice.choice((URGENT, PATIENT))
        life = town.core.life("plan", body(), Deadline(at_s + TIMEOUT_S), priority, idempotent=True)
        try:
            step = life.send(None)
        except errors.DeadlineExceeded as error:
            found.append(Outcome(priority, None))
            fates.add(error.fate)
            continue
        assert isinstance(step, Attempt)
        done_s, load_report, queued_s = town.nodes[name_of(step)].serve(at_s)
        made = answer(load_report, compute_us=int(SERVICE_S * 1e6), queue_us=int(queued_s * 1e6))
        heapq.heappush(due, (done_s, number, life, made, priority, at_s))
    last_s = at_s
    while due:
        _finish(town, heapq.heappop(due), found)
    town.assert_idle()
    assert fates <= {Fate.NEVER_RAN}
    return found, last_s - begin_s


def _finish(town: Town, one: tuple[float, int, Life, Answer, int, float], found: list[Outcome]) -> None:
    done_s, _, life, made, priority, began_s = one
    town.now = done_s
    town.finish(life, made)
    found.append(Outcome(priority, done_s - began_s))


def test_overload_costs_the_least_urgent_and_nobody_who_was_taken() -> None:
    found, took_s = flood(1.5, 8.0)
    accepted = sorted(one.took_s for one in found if one.took_s is not None)
    assert accepted[int(len(accepted) * 0.99)] <= TIMEOUT_S
    in_time = sum(one <= TIMEOUT_S for one in accepted)
    assert in_time * SERVICE_S / NODES / took_s >= 0.9, "of what the workers could do"
    refused = {
        priority: sum(one.took_s is None for one in found if one.priority == priority) for priority in (URGENT, PATIENT)
    }
    assert refused[PATIENT] > 10 * max(refused[URGENT], 1)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_without_overload_nobody_is_refused(load: float) -> None:
    found, _ = flood(load, 4.0)
    assert sum(one.took_s is None for one in found) <= 0.01 * len(found)
