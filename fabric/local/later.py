"""A final frame that is awaited by a function, not by a coroutine: what a port takes for each request it passes on.

It stands where an asyncio future stands, and tells at once, in the loop's thread, where a future would wait for a turn
of the loop and a task for two. This module never sends. Read `fabric/local/mux.py` next.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from fabric.local.exchange import Places

    Then = Callable[[bytes | BaseException], None]
    Key = tuple[int, int]


class Later:  # mutable: open, then over
    """`then` is called once: with the frame, or with the error that takes its place, as that it did not come until
    `at_s`. `frame` and `places` are what it answers."""

    __slots__ = ("_loop", "_over", "_then", "at_s", "frame", "places")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, then: Then, at_s: float, frame: bytes, places: Places
    ) -> None:  # fmt: skip
        self._loop, self._then = loop, then
        self.at_s, self.frame, self.places = at_s, frame, places
        self._over = False

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
        self._then(outcome)


class Alarm:  # mutable: set, then rung
    """One timer for all that wait, at the earliest time: one for each would cost more than to look at all of them now
    and then, since hardly any is late. `late` is told of each of `waiting` that is."""

    __slots__ = ("_at_s", "_late", "_timer", "_waiting")

    def __init__(self, waiting: Mapping[Key, Later | object], late: Callable[[Key, Later], None]) -> None:
        self._waiting = waiting
        self._late: Callable[[Key, Later], None] | None = late
        self._at_s = inf
        self._timer: asyncio.TimerHandle | None = None

    def by(self, at_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """Somebody is late then."""
        if at_s < self._at_s:
            self._cancel()
            self._at_s = at_s
            self._timer = loop.call_at(at_s, self._ring, loop)

    def end(self) -> None:
        """Nobody waits any more. It holds whoever made it no longer, or both would wait for the garbage collector."""
        self._cancel()
        self._late = None

    def _cancel(self) -> None:
        timer, self._timer, self._at_s = self._timer, None, inf
        if timer is not None:
            timer.cancel()

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._at_s = None, inf
        now, next_s, late = loop.time(), inf, self._late
        if late is None:
            return
        for key, final in tuple(self._waiting.items()):
            if isinstance(final, Later) and not final.done():
                if final.at_s <= now:
                    late(key, final)
                else:
                    next_s = min(next_s, final.at_s)
        self.by(next_s, loop)
