"""A point in time by which a wait must end; it travels as the microseconds that remain.

Clocks of two machines differ, so what crosses a wire is `remaining_us`, never a time of day. This module reads no
clock: `now` is always passed in, in seconds of the monotonic clock of the process. Read `fabric/dtypes.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from fabric.errors import InvalidArgument

TIMEOUT_MAX_S: Final = 86_400.0
"""A day: no request of this field waits longer, and a larger number is most likely milliseconds meant as seconds."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """A monotonic time, in seconds, by which a wait must end."""

    at_s: float

    @classmethod
    def after(cls, timeout_s: Any, now: float) -> Deadline:
        """The deadline `timeout_s` seconds from `now`. Raises InvalidArgument unless 0 <= timeout_s <= a day."""
        try:
            if 0.0 <= timeout_s <= TIMEOUT_MAX_S:  # NaN fails this too
                return cls(now + timeout_s)
        except TypeError:  # no number at all
            pass
        raise InvalidArgument(f"timeout_s is {timeout_s!r}; give seconds between 0 and {TIMEOUT_MAX_S:.0f}")

    @classmethod
    def from_remaining_us(cls, remaining_us: int, now: float) -> Deadline:
        """The deadline that a peer sent as remaining microseconds."""
        return cls(now + min(remaining_us / 1e6, TIMEOUT_MAX_S))

    def remaining_s(self, now: float) -> float:
        """Seconds left, never below zero."""
        return max(0.0, self.at_s - now)

    def remaining_us(self, now: float) -> int:
        """Whole microseconds left, never below zero, as they travel."""
        return int(self.remaining_s(now) * 1e6)

    def expired(self, now: float) -> bool:
        """Whether the time is over."""
        return now >= self.at_s

    def earlier(self, other: Deadline) -> Deadline:
        """The one that comes first."""
        return self if self.at_s <= other.at_s else other
