"""How often Consul is asked: a token bucket for a list that keeps changing, full jitter after a failure.

The bucket holds two reads, so that single news is read at once; it refills so slowly that all reads together cost a
fixed share of one core, however long the list is. Full jitter spreads readers that all lost the same servers. This
module never sleeps. Read `discovery/agent/watch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

BURST = 2.0
_ALPHA = 0.2


class TokenBucket:  # mutable: fills with time
    """Reads that may be made. `share` of one core is what they may cost, `gap_s` the least time between two."""

    def __init__(self, gap_s: float, share: float, now: float) -> None:
        self._least_s = gap_s
        self._share = share
        self._cost_s = 0.0
        self._tokens = BURST
        self._at = now

    @property
    def gap_s(self) -> float:
        """The time that one read refills in."""
        return max(self._least_s, self._cost_s / self._share)

    def cost(self, cost_s: float) -> None:
        """A read took `cost_s` of processor time."""
        self._cost_s = cost_s if not self._cost_s else self._cost_s + _ALPHA * (cost_s - self._cost_s)

    def take(self, now: float) -> float:
        """Takes one read; returns how many seconds to wait before it."""
        self._tokens = min(BURST, self._tokens + max(0.0, now - self._at) / self.gap_s)
        self._at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens) * self.gap_s


class FullJitter:  # mutable: counts the failures in a row
    """Waits between 0 and an upper end that doubles with each failure."""

    def __init__(self, first_s: float, max_s: float, rng: Random) -> None:
        self._first_s, self._max_s, self._rng = first_s, max_s, rng
        self._failures = 0

    @property
    def calm(self) -> bool:
        """Whether nothing failed since it last went well."""
        return not self._failures

    def fail(self) -> float:
        """One more failure; returns how many seconds to wait."""
        upper_s = min(self._max_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return self._rng.uniform(0.0, upper_s)

    def reset(self) -> None:
        """It went well: the next failure is a first one."""
        self._failures = 0
