"""A selector for asyncio that serves some descriptors by itself: those that each request passes.

asyncio makes three turns of Python out of each descriptor that is ready: a key, a handle, a run of its loop. Here the
action is called at once, and asyncio is only come back to when it has something to do: another descriptor, a timer, or
what an action asked of it. Its next timer is a descriptor too, so that no turn asks for the time. This module knows no
protocol. Read `fabric/hot_loop.py` next.
"""

from __future__ import annotations

import select
import selectors
from math import nan
from typing import TYPE_CHECKING, Any, Final

from fabric.timer_fd import TimerFd

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVENTS_MAX: Final = 64
"""Ready descriptors taken in one turn."""


class HotSelector:  # mutable: watches
    """What `asyncio.SelectorEventLoop` asks of a selector. `hurry` is set when asyncio has something to do; `failed` is
    told what an action raised. `now` is the time that asyncio was told last: it asks for it before each timeout. Where
    nobody says it, the timer is set for each wait."""

    def __init__(self) -> None:
        self.hurry = False
        self.now = nan
        self.failed: Callable[[Exception], None] | None = None
        self._others: Any = selectors.EpollSelector()
        self._poll = select.epoll()
        self._poll.register(self._others.fileno(), select.EPOLLIN)
        self._timer = TimerFd()
        self._poll.register(self._timer.fd, select.EPOLLIN)
        self._timed, self._at_s = False, nan
        """Whether the timer is set, and when it is due, as far as that is known."""
        self._actions: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, action: Callable[[], None]) -> None:
        """Calls `action` whenever the descriptor can be read, until `unwatch`."""
        assert fd not in self._actions, f"descriptor {fd} is watched twice"
        self._poll.register(fd, select.EPOLLIN)
        self._actions[fd] = action

    def unwatch(self, fd: int) -> bool:
        """Stops that; says whether it was watched."""
        if self._actions.pop(fd, None) is None:
            return False
        self._poll.unregister(fd)
        return True

    def select(self, timeout: float | None = None) -> list[Any]:
        """What is ready of asyncio's own descriptors; nothing when the time is over, or `hurry` is set."""
        self.hurry = False
        self._time(timeout)
        wait_s = 0.0 if timeout is not None and timeout <= 0.0 else -1.0
        while True:
            over = wait_s == 0.0
            others = False
            for fd, _ in self._poll.poll(wait_s, EVENTS_MAX):
                action = self._actions.get(fd)
                if action is not None:
                    self._call(action)
                elif fd == self._timer.fd:
                    over = True
                else:  # asyncio's, or unwatched by an action before it
                    others = True
            if others:
                found: list[Any] = self._others.select(0)
                return found
            if self.hurry or over:
                return []

    def register(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """One of asyncio's own."""
        return self._others.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> Any:
        """The same."""
        return self._others.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> Any:
        """The same."""
        return self._others.modify(fileobj, events, data)

    def get_key(self, fileobj: Any) -> Any:
        """The same. Raises KeyError."""
        return self._others.get_key(fileobj)

    def get_map(self) -> Mapping[Any, Any]:
        """The same."""
        found: Mapping[Any, Any] = self._others.get_map()
        return found

    def close(self) -> None:
        """Closes both."""
        self._actions.clear()
        self._poll.close()
        self._timer.close()
        self._others.close()

    def _time(self, timeout: float | None) -> None:
        """Sets the timer for this wait. One that is due before stays: asyncio finds nothing to do then, once, where to
        set it anew would be a system call for each wait."""
        if timeout is not None and timeout > 0.0:
            at_s = self.now + timeout
            if not (self._timed and self.now < self._at_s <= at_s):
                self._timer.set_in(timeout)
                self._timed, self._at_s = True, at_s
        elif timeout is None and self._timed:
            self._timer.clear()
            self._timed = False

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever it is, the loop goes on, as asyncio's own does
            if self.failed is None:
                raise
            self.failed(error)
