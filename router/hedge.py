"""Hedging: a second copy of a request that takes much longer than predicted, on another worker, under a budget.

A copy is sent only where all of this holds: the model is idempotent; its answer is late by several times what it was
predicted to compute; somebody else, whose page was just read, would answer it within as much time again as it is late
already; the fleet is not busy; and the budget (a share of all work) has something left. A spent budget never ends the
original. The first answer counts, and the other copy is cancelled: at its node before it begins, if it still waits
there. This module sends nothing and reads nothing. Read `router/race.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.fresh import far, near
from router.pick import Nobody, pick
from router.steps import Read
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
COST_OVER_LATE_MAX = 1.0
"""A copy may take as long as the request is late by now: what is late by so much is mostly late by as much again (a
stall, a queue behind one)."""
BUSY_WAIT_RUNS = 0.7
"""Where requests wait for so much of a run even at the worker that was picked for them, about 85 % of the fleet is at
work (w-gpu: 0.28 at half load, 0.61 at 80 %, 0.73 at 85 %, 1.1 at 90 %), and copies would take others' time."""
_REMEMBERED = 0.99
"""What is left of an earlier request in those two means: about the last hundred count."""
SAVED_RUNS_MAX = 10.0
"""So many copies may be sent in a burst after a quiet time."""


class HedgeBudget:  # mutable: what is left
    """Earns `ratio` of each request's work, in milliseconds. Short requests are late more often than long ones, behind
    one of those, and their copies cost next to nothing: counted by the piece they would take all of the budget. Its
    owner's lock guards it."""

    __slots__ = ("_left_ms", "_ratio", "refused", "sent")

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._left_ms = 0.0
        self.sent = 0
        self.refused = 0

    def earn(self, run_ms: float) -> None:
        """A request was sent that should run for so long."""
        self._left_ms = max(self._left_ms, min(SAVED_RUNS_MAX * run_ms, self._left_ms + self._ratio * run_ms))

    @property
    def left(self) -> bool:
        """Whether a copy may be sent."""
        return self._left_ms > 0.0

    def take(self, run_ms: float) -> bool:
        """Grants a copy that should run for so long, if anything is left: what it takes too much is earned before the
        next one."""
        if self._left_ms <= 0.0:
            self.refused += 1
            return False
        self._left_ms -= run_ms
        self.sent += 1
        return True

    def __repr__(self) -> str:
        return f"<HedgeBudget {self._left_ms:.1f} ms left, {self.sent} sent, {self.refused} refused>"


def _reads_nobody(_: Read) -> bool:
    return False


class Hedger:
    """Says when a copy of an attempt may be sent, and books it. `lock` is the router's."""

    __slots__ = ("_clock", "_lock", "_rng", "_run_ms", "_sample", "_table", "_wait_ms", "begin_read", "budget")

    def __init__(self, config: RouterConfig, table: Table, lock: Lock, rng: Random, clock: Callable[[], float]) -> None:
        self._sample = config.remote_sample
        self._wait_ms = self._run_ms = 0.0
        self._table = table
        self._rng = rng
        self._lock = lock
        self._clock = clock
        self.budget = HedgeBudget(config.hedge_ratio)
        self.begin_read: Callable[[Read], bool] = _reads_nobody
        """Reads pages; whether some are still on their way."""

    @property
    def busy(self) -> bool:
        """Whether so many workers are at work that none can be spared for copies."""
        return self._wait_ms > BUSY_WAIT_RUNS * self._run_ms

    def let_go(self) -> None:
        """Reads nothing any more, and holds nobody who could."""
        self.begin_read = _reads_nobody

    def after_s(self, attempt: Attempt) -> float | None:
        """When a copy may be sent, in seconds from the attempt's beginning; None for never. Asked once an attempt."""
        picked = attempt.picked
        with self._lock:
            self.budget.earn(picked.terms[4])
            self._wait_ms = _REMEMBERED * self._wait_ms + picked.terms[2] + picked.terms[3]
            self._run_ms = _REMEMBERED * self._run_ms + picked.terms[4]
            if not attempt.call.movable or picked.second is None or not picked.worker.speed.known(attempt.kind):
                return None
        total_ms, compute_ms = picked.terms[0], picked.terms[4]
        return max(HEDGE_AFTER_MIN_S, (total_ms + HEDGE_AFTER_RUNS * compute_ms) / 1000.0)

    def again_s(self, attempt: Attempt) -> float:
        """When to ask for a copy again, in seconds from now."""
        return max(HEDGE_AFTER_MIN_S, AGAIN_RUNS * attempt.picked.terms[4] / 1000.0)

    def look(self, attempt: Attempt) -> Read | None:
        """Whose pages to read before a copy is sent; None where none may be sent now."""
        with self._lock:
            if self.busy or not self.budget.left:
                return None
            now, offer = self._clock(), self._table.offer(attempt.call.model)
            kind, avoid = attempt.kind, (attempt.picked.worker.name,)
            others = far(offer, avoid, kind, attempt.units, self._sample, self._rng, now)
            return Read((*near(offer, avoid, now), *others), kind)

    def copy(self, attempt: Attempt, read: Read | None = None) -> Tied | None:
        """Books a copy at the cheapest other worker; None where it would take too long there, or nothing is left.
        `read`: the workers whose pages were just read."""
        call, kind, first = attempt.call, attempt.kind, attempt.picked.worker
        nbytes = call.body.layout.body_bytes + kind.reply_bytes
        fresh = read.workers if read is not None else None
        with self._lock:
            now, offer = self._clock(), self._table.offer(call.model)
            found = pick(offer, kind, nbytes, (first.name,), self._sample, self._rng, now, attempt.units, fresh)
            if isinstance(found, Nobody) or found.last_resort or found.worker is first or found.worker.link is None:
                return None
            if attempt.needs is not None and attempt.needs.missing(found.worker):
                return None  # a copy is sent as the first was, which need not bring what is missing there
            late_ms = (now - attempt.began_s) * 1000.0 - attempt.picked.terms[0]
            if self.busy or found.terms[0] > COST_OVER_LATE_MAX * late_ms or not self.budget.take(found.terms[4]):
                return None
            attempt.tied = Tied.at(found, attempt)
            attempt.tied.began_s = now
            return attempt.tied
