"""Simulated time: a heap of actions, and a `now` that jumps from one to the next.

Actions of the same moment run in the order they were scheduled, so a run depends on nothing but its input. This module
never reads a real clock: a pump (`fabric/sim/pump.py`) may drive it by one. Read `fabric/sim/network.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class SimTimer:  # mutable: pending, then run or cancelled
    """One scheduled action."""

    __slots__ = ("action", "at_s", "order")

    def __init__(self, at_s: float, order: int, action: Callable[[], None]) -> None:
        self.at_s = at_s
        self.order = order
        self.action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """It will not run; safe at any time."""
        self.action = None

    def __lt__(self, other: SimTimer) -> bool:
        return (self.at_s, self.order) < (other.at_s, other.order)


class SimClock:  # mutable: it is time
    """Time in seconds, and what is to happen when."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.now = start_s
        self._heap: list[SimTimer] = []
        self._scheduled = 0

    def call_later(self, delay_s: float, action: Callable[[], None]) -> SimTimer:
        """Runs `action` in `delay_s` seconds (never before what is already due)."""
        self._scheduled += 1
        timer = SimTimer(self.now + max(0.0, delay_s), self._scheduled, action)
        heapq.heappush(self._heap, timer)
        return timer

    def next_at(self) -> float | None:
        """When the next action is due; None if nothing is scheduled."""
        while self._heap and self._heap[0].action is None:
            heapq.heappop(self._heap)
        return self._heap[0].at_s if self._heap else None

    def run_next(self) -> bool:
        """Goes to the next action and runs it; False if nothing is scheduled."""
        at_s = self.next_at()
        if at_s is None:
            return False
        timer = heapq.heappop(self._heap)
        self.now = max(self.now, at_s)
        action, timer.action = timer.action, None
        if action is not None:
            action()
        return True

    def run_until(self, at_s: float) -> None:
        """Runs all that is due until `at_s`, then stands there."""
        while (due := self.next_at()) is not None and due <= at_s:
            self.run_next()
        self.now = max(self.now, at_s)

    def clear(self) -> None:
        """Nothing that was scheduled will happen."""
        self._heap.clear()
