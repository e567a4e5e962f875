"""Ties: a request whose beginning is uncertain goes to several workers, and the first to begin it runs it.

An estimate of a wait is wrong by about as much as runs differ, so the second cheapest worker is often free first; a
tie finds out instead of guessing. It costs a message each way, and a second run where both begin before either can
withdraw: the way from one to the other. So a request is tied only if it would wait at the cheapest for longer than
that. One that was sent to a local worker before remote pages were there is tied when they are, with a remote worker
that would answer sooner (`sooner`). This module sends nothing. Read `router/dispatch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.pick import Picked
from router.price import price

if TYPE_CHECKING:
    from collections.abc import Iterator

    from router.dispatch import Attempt
    from router.price import Terms
    from router.workers import Worker

WAIT_MIN_MS = 0.5
WAYS_MIN = 2.0
"""A request must be expected to wait for twice the way between the two, and half a millisecond."""
BLIND_MAX, BLIND_COST_MAX = 3, 3.0
"""Of a request whose cost nobody hinted at, estimates say less, so that it is tied with up to three others, of up to
three times the price (docs/routing.md compares other numbers)."""
COST_MAX = 2.0
"""The second may cost twice as much as the first: estimates are about as wrong as that when a worker turns slow."""


def partners(attempt: Attempt, fresh: tuple[Worker, ...] | None, nbytes: int, now: float) -> list[Picked]:
    """The other workers of an attempt; none where one is enough."""
    found = attempt.picked
    waits = found.terms[2] + found.terms[3]
    blind = not attempt.hint and fresh is not None
    others = (
        _all_others(attempt, fresh, nbytes, now)
        if blind and fresh is not None
        else _others(attempt, fresh, nbytes, now)
    )
    most, cost_max = (BLIND_MAX, BLIND_COST_MAX) if blind else (1, COST_MAX)
    tied: list[Picked] = []
    for worker, other in others:
        if len(tied) == most or worker.link is None or other[0] > cost_max * found.terms[0]:
            continue
        if waits >= WAIT_MIN_MS + WAYS_MIN * (found.terms[1] + other[1]) / 2.0:
            tied.append(Picked(worker, other, found.candidates))
    return tied


def _all_others(attempt: Attempt, fresh: tuple[Worker, ...], nbytes: int, now: float) -> list[tuple[Worker, Terms]]:
    """All others whose load was just read, the cheapest first."""
    kind, units = attempt.kind, attempt.units
    priced = [
        (worker, price(worker.line, worker.ahead, worker.speed, kind, nbytes, now, units))
        for worker in fresh
        if worker is not attempt.picked.worker
    ]
    return sorted(priced, key=lambda one: one[1][0])


def sooner(attempt: Attempt, read: tuple[Worker, ...], nbytes: int, now: float) -> Picked | None:
    """The worker among those read that would answer an attempt sooner than the one that has it; None if none would.

    What is left before the attempt there is its wait at the pick, less the time since."""
    found = attempt.picked
    terms = found.terms
    left_ms = max(0.0, terms[2] + terms[3] - (now - attempt.began_s) * 1000.0) + terms[4]
    best: tuple[Terms, Worker] | None = None
    for worker in read:
        if worker.link is None or worker is found.worker or worker.why_not(now):
            continue
        other = price(worker.line, worker.ahead, worker.speed, attempt.kind, nbytes, now, attempt.units)
        if best is None or other[0] < best[0][0]:
            best = other, worker
    if best is None or best[0][0] >= left_ms:
        return None
    return Picked(best[1], best[0], found.candidates + len(read))


def _others(
    attempt: Attempt, fresh: tuple[Worker, ...] | None, nbytes: int, now: float
) -> Iterator[tuple[Worker, Terms]]:
    """The runner-up; then the cheapest local worker, which a remote one is best tied with."""
    found = attempt.picked
    if found.second is None or found.second_terms is None:
        return
    yield found.second, found.second_terms
    if found.worker.is_local or found.second.is_local or fresh is None:
        return
    kind, units = attempt.kind, attempt.units
    priced = [
        (price(worker.line, worker.ahead, worker.speed, kind, nbytes, now, units), worker)
        for worker in fresh
        if worker.is_local
    ]
    if priced:
        terms, worker = min(priced, key=lambda one: one[0][0])
        yield worker, terms
