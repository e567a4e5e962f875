"""An asyncio loop whose clock jumps: ten minutes of timers pass in as long as their callbacks take.

Whatever awaits on it (the router's links, its dials, its requests) is the real thing; only time is not. Nothing here
decides anything. Read `tests/sim/registry_world.py` next.
"""

from __future__ import annotations

import asyncio
import selectors


class _Jumping(selectors.SelectSelector):
    """Never sleeps: where the loop would, the clock goes on by so much."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if not found:
            assert timeout is not None, "nobody has a timer, so nothing would ever happen again"
            self.now_s += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; it begins at 100 s."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds of simulated time."""
        return self._jumping.now_s
