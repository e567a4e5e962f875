"""When a session's line that ended is opened again: at once after a long life, else ever later.

Something between the ends (a proxy, mostly) may cut whatever stays open; then the pings of the link must do, and the
tries cost next to nothing. A port of an earlier version has no such method, and is not asked again. This module never
opens one: `fabric/rpc_fallback/watching.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

STEADY_S = 10.0
"""A line that lived so long was no mistake."""
AGAIN_S = 1.0
AGAIN_MAX_S = 30.0
"""For a path that cuts every line: two tries a minute."""


class LineTries:  # mutable: times
    """The tries of one session's line. All times are of one monotonic clock."""

    def __init__(self) -> None:
        self._began_s = self._from_s = float("-inf")
        self._pause_s = 0.0
        self._never = False

    def due(self, now: float) -> bool:
        """Whether one may be opened now."""
        return not self._never and now >= self._from_s

    def began(self, now: float) -> None:
        """One was opened."""
        self._began_s = now

    def ended(self, now: float, *, known: bool) -> None:
        """It is over; `known` is false where the port has no such method."""
        self._never = self._never or not known
        if now - self._began_s >= STEADY_S:
            self._pause_s = 0.0
        self._from_s = now + self._pause_s
        self._pause_s = min(max(2 * self._pause_s, AGAIN_S), AGAIN_MAX_S)
