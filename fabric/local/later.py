"""A final frame that is awaited by a function, not by a coroutine: what a port takes for each request it passes on.

It stands where an asyncio future stands, and tells at once, in the loop's thread, where a future would wait for a turn
of the loop and a task for two. This module never sends. Read `fabric/local/mux.py` next.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

from fabric.deadline import TIMEOUT_MAX_S

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from fabric.local.exchange import Places

    Then = Callable[[bytes | BaseException], None]
    Key = tuple[int, int]

LOOK_S: Final = 0.05
"""How late it may be told that something is late. The node keeps the same limit, and so does whoever called: this one
is for a node that stands still, and a look at the clock for each request would cost more than it is worth."""


class Later:  # mutable: open, then over
    """`then` is called once: with the frame, or with the error that takes its place, as that it did not come until
    `at_s`, which is not known before the first look. `frame` and `places` are what it answers."""

    __slots__ = ("_loop", "_over", "_then", "at_s", "budget_s", "frame", "places")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, then: Then, budget_us: int, frame: bytes, places: Places
    ) -> None:  # fmt: skip
        self._loop, self._then = loop, then
        self.at_s, self.budget_s = inf, min(budget_us / 1e6, TIMEOUT_MAX_S)
        self.frame, self.places = frame, places
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
    and then, since hardly any is late. Those that are new get their time at the next look. `late` is told of each of
    `waiting` that is late."""

    __slots__ = ("_late", "_looks", "_timer", "_waiting")

    def __init__(self, waiting: Mapping[Key, Later | object], late: Callable[[Key, Later], None]) -> None:
        self._waiting = waiting
        self._late: Callable[[Key, Later], None] | None = late
        self._looks = False
        """Whether the timer is as early as one that is new needs it."""
        self._timer: asyncio.TimerHandle | None = None

    def begun(self, loop: asyncio.AbstractEventLoop) -> None:
        """One more waits."""
        if not self._looks:
            self._set(loop.time() + LOOK_S, loop)
            self._looks = True

    def end(self) -> None:
        """Nobody waits any more. It holds whoever made it no longer, or both would wait for the garbage collector."""
        self._cancel()
        self._late = None

    def _cancel(self) -> None:
        timer, self._timer, self._looks = self._timer, None, False
        if timer is not None:
            timer.cancel()

    def _set(self, at_s: float, loop: asyncio.AbstractEventLoop) -> None:
        self._cancel()
        self._timer = loop.call_at(at_s, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer, self._looks = None, False
        now, next_s, late = loop.time(), inf, self._late
        if late is None:
            return
        for key, final in tuple(self._waiting.items()):
            if isinstance(final, Later) and not final.done():
                final.at_s = min(final.at_s, now + final.budget_s)
                if final.at_s <= now:
                    late(key, final)
                else:
                    next_s = min(next_s, final.at_s)
        if next_s < inf and not self._looks:  # who was told may have begun another
            self._set(next_s, loop)
