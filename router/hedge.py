"""Hedging: a second copy of a request that takes much longer than predicted, on the runner-up, under a budget.

A copy is sent only where all of this holds: the model is idempotent; the request has been out for several times what it
was predicted to take; somebody else would begin it about at once, so that a busy fleet, where everything is late, sends
none; and the budget (a share of all requests) has something left. A spent budget never ends the original. The first
answer counts, and the other copy is cancelled: at its node before it begins, if it still waits there. This module sends
nothing. Read `router/race.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from router.dispatch import Tied
from router.pick import Picked
from router.price import price

if TYPE_CHECKING:
    from collections.abc import Callable
    from threading import Lock

    from router.dispatch import Attempt

HEDGE_AFTER = 3.0
"""Times the predicted answer: where the slowest percent of usual requests lies, so few are copied for nothing."""
HEDGE_AFTER_MIN_S = 0.002
"""A copy that is sent sooner would race with the network, not with a stall."""
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

    __slots__ = ("_clock", "_lock", "budget")

    def __init__(self, ratio: float, lock: Lock, clock: Callable[[], float]) -> None:
        self._lock = lock
        self._clock = clock
        self.budget = HedgeBudget(ratio)

    def after_s(self, attempt: Attempt) -> float | None:
        """When a copy may be sent, in seconds from the attempt's beginning; None for never. Asked once an attempt."""
        picked = attempt.picked
        with self._lock:
            self.budget.earn()
            if not attempt.call.movable or picked.second is None or not picked.worker.speed.known(attempt.kind):
                return None
        return max(HEDGE_AFTER_MIN_S, HEDGE_AFTER * picked.terms[0] / 1000.0)

    def copy(self, attempt: Attempt) -> Tied | None:
        """Books a copy at the runner-up; None where that one is not usable or would let it wait, or nothing is left."""
        with self._lock:
            now, second, kind = self._clock(), attempt.picked.second, attempt.kind
            if second is None or second.link is None or second.why_not(now):
                return None
            nbytes = attempt.call.body.layout.body_bytes + kind.reply_bytes
            terms = price(second.line, second.ahead, second.speed, kind, nbytes, now, attempt.units)
            if terms[2] + terms[3] > terms[4] or not self.budget.take():
                return None
            dispatch = second.ahead.sent(second.speed.full_ms(kind) * attempt.units)
            attempt.tied = Tied(Picked(second, terms, attempt.picked.candidates), second.link, dispatch, now)
            return attempt.tied
