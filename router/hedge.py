"""Hedging: a second copy of a request that takes much longer than predicted, on another worker, under a budget.

A copy is sent only where all of this holds: the model is idempotent; its answer is late by several times what it was
predicted to compute; somebody else would begin it about at once, so that a busy fleet, where everything is late, sends
none; and the budget (a share of all requests) has something left. A spent budget never ends the original. The first
answer counts, and the other copy is cancelled: at its node before it begins, if it still waits there. This module sends
nothing. Read `router/race.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.pick import Nobody, pick
from router.tied import Tied

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from threading import Lock

    from router.config import RouterConfig
    from router.dispatch import Attempt
    from router.table import Table

HEDGE_AFTER_RUNS = 1.5
"""A copy is sent when the answer is late by so many runs: where the slowest percents of usual requests lie."""
AGAIN_RUNS = 0.5
"""Where nobody could begin a copy at once, or none may be sent now, it is asked again after so much: somebody becomes
idle within about a run, and to give up at the first look leaves half of the stalls as they are."""
HEDGE_AFTER_MIN_S = 0.002
"""A copy that is sent sooner would race with the network, not with a stall."""
WAIT_SHARE_MAX = 0.5
"""A copy may wait for half of its own run: where all let it wait longer the fleet is busy, and copies make it worse."""
TOKENS_MAX = 10.0
"""So many copies may be sent in a burst after a quiet time."""


class HedgeBudget:  # mutable: tokens
    """Earns `ratio` of a copy with each request. Its owner's lock guards it."""

    __slots__ = ("_ratio", "_tokens", "refused", "sent")

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._tokens = 1.0
        self.sent = 0
        self.refused = 0

    def earn(self) -> None:
        """A request was sent."""
        self._tokens = min(TOKENS_MAX, self._tokens + self._ratio)

    def take(self) -> bool:
        """Grants one copy, if something is left."""
        if self._tokens < 1.0:
            self.refused += 1
            return False
        self._tokens -= 1.0
        self.sent += 1
        return True

    def __repr__(self) -> str:
        return f"<HedgeBudget {self._tokens:.1f} left, {self.sent} sent, {self.refused} refused>"


class Hedger:
    """Says when a copy of an attempt may be sent, and books it. `lock` is the router's."""

    __slots__ = ("_clock", "_lock", "_rng", "_sample", "_table", "budget")

    def __init__(self, config: RouterConfig, table: Table, lock: Lock, rng: Random, clock: Callable[[], float]) -> None:
        self._sample = config.remote_sample
        self._table = table
        self._rng = rng
        self._lock = lock
        self._clock = clock
        self.budget = HedgeBudget(config.hedge_ratio)

    def after_s(self, attempt: Attempt) -> float | None:
        """When a copy may be sent, in seconds from the attempt's beginning; None for never. Asked once an attempt."""
        picked = attempt.picked
        with self._lock:
            self.budget.earn()
            if not attempt.call.movable or picked.second is None or not picked.worker.speed.known(attempt.kind):
                return None
        total_ms, compute_ms = picked.terms[0], picked.terms[4]
        return max(HEDGE_AFTER_MIN_S, (total_ms + HEDGE_AFTER_RUNS * compute_ms) / 1000.0)

    def again_s(self, attempt: Attempt) -> float:
        """When to ask for a copy again, in seconds from now."""
        return max(HEDGE_AFTER_MIN_S, AGAIN_RUNS * attempt.picked.terms[4] / 1000.0)

    def copy(self, attempt: Attempt) -> Tied | None:
        """Books a copy at the cheapest other worker; None where it would wait there, or nothing is left."""
        call, kind, first = attempt.call, attempt.kind, attempt.picked.worker
        nbytes = call.body.layout.body_bytes + kind.reply_bytes
        with self._lock:
            now, offer = self._clock(), self._table.offer(call.model)
            found = pick(offer, kind, nbytes, (first.name,), self._sample, self._rng, now, attempt.units)
            if isinstance(found, Nobody) or found.last_resort or found.worker is first or found.worker.link is None:
                return None
            if attempt.needs is not None and attempt.needs.missing(found.worker):
                return None  # a copy is sent as the first was, which need not bring what is missing there
            if found.terms[2] + found.terms[3] > found.terms[4] * WAIT_SHARE_MAX or not self.budget.take():
                return None
            attempt.tied = Tied.at(found, attempt)
            attempt.tied.began_s = now
            return attempt.tied
