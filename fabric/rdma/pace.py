"""How many bytes of bodies are posted at a time: many for speed, few while small frames go on the other pair.

A device takes turns between queue pairs, but what is on its way already, here, on the link and at the peer, is ahead of
a small frame. So for a while after one passed only as much is posted as the device does in a millisecond. Nothing is
gained from less: a completion costs the interpreter some tenths of that. This module posts nothing. Read
`fabric/rdma/outbox.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import Final

WINDOW_BYTES: Final = 4 << 20
"""Bytes of bodies posted at a time, and at most one piece more: 160 us of a 200 Gbit/s link."""
BESIDE_BYTES_MIN: Final = 64 << 10
"""The same beside small frames, at least; a fast link is given more."""
BESIDE_WORK_S: Final = 0.001
"""What the device has to do at most then, at the rate that was seen."""
BESIDE_S: Final = 0.2
"""How long it is so after a small frame, or after the first completion behind one."""
RATE_S: Final = 0.005
"""A rate is taken over so long at least."""


class Pace:  # mutable: looks at what passes
    """The bytes of one connection's bodies. All times are of one monotonic clock."""

    __slots__ = ("_beside", "_beside_until_s", "_done_bytes", "_passed", "_rate", "_since_s", "window_bytes")

    def __init__(self) -> None:
        self.window_bytes = WINDOW_BYTES
        """What may be posted now."""
        self._beside = False
        self._passed = False
        """Whether a small frame passed since it was last looked: to ask for the time with each would cost more."""
        self._beside_until_s = 0.0
        self._rate = 0.0
        self._done_bytes = 0
        self._since_s: float | None = None
        """When those began, and there was always more to do; None while there is nothing."""

    def small_frame(self) -> None:
        """One goes on the other pair now."""
        self._passed = True
        if not self._beside:
            self._beside = True
            self._fit()

    def settled(self, nbytes: int, now_s: float, *, is_idle: bool) -> None:
        """So many bytes were done; `is_idle` says that there is nothing more to do."""
        if self._passed:
            self._passed = False
            self._beside_until_s = now_s + BESIDE_S
        elif self._beside and now_s >= self._beside_until_s:
            self._beside = False
        since_s = self._since_s
        if since_s is None:
            self._since_s = now_s  # what was done by now was begun at a time that nobody looked at
            self._done_bytes = 0
        else:
            self._done_bytes += nbytes
            if now_s - since_s >= RATE_S:
                self._rate = self._done_bytes / (now_s - since_s)
                self._since_s = now_s
                self._done_bytes = 0
        if is_idle:
            self._since_s = None
        self._fit()

    def _fit(self) -> None:
        beside = max(BESIDE_BYTES_MIN, int(self._rate * BESIDE_WORK_S))
        self.window_bytes = min(beside, WINDOW_BYTES) if self._beside else WINDOW_BYTES
