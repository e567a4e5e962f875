"""A final frame that is awaited by a function, not by a coroutine: what a port takes for each request it passes on.

It stands where an asyncio future stands, and tells at once, in the loop's thread, where a future would wait for a turn
of the loop and a task for two. This module never sends. Read `fabric/local/mux.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    Then = Callable[[bytes | BaseException], None]


class Later:  # mutable: open, then over
    """`then` is called once: with the frame, or with the error that takes its place. `timer` ends with it."""

    __slots__ = ("_loop", "_over", "_then", "timer")

    def __init__(self, loop: asyncio.AbstractEventLoop, then: Then) -> None:
        self._loop, self._then = loop, then
        self._over = False
        self.timer: asyncio.TimerHandle | None = None

    def done(self) -> bool:
        """Whether `then` was called."""
        return self._over

    def get_loop(self) -> asyncio.AbstractEventLoop:
        """The loop whose thread it belongs to."""
        return self._loop

    def set_result(self, frame: bytes) -> None:
        """The frame came."""
        self._end(frame)

    def set_exception(self, error: BaseException) -> None:
        """It will not come."""
        self._end(error)

    def _end(self, outcome: bytes | BaseException) -> None:
        self._over = True
        if self.timer is not None:
            self.timer.cancel()
        self._then(outcome)
