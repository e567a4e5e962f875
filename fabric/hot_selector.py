"""A selector for asyncio that serves some descriptors by itself: those that each request passes.

asyncio makes three turns of Python out of each descriptor that is ready: a key, a handle, a run of its loop. Here the
action is called at once, and asyncio is only come back to when it has something to do: another descriptor, a timer, or
what an action asked of it. This module knows no protocol. Read `fabric/hot_loop.py` next.
"""

from __future__ import annotations

import select
import selectors
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EVENTS_MAX: Final = 64
"""Ready descriptors taken in one turn."""


class HotSelector:  # mutable: watches
    """What `asyncio.SelectorEventLoop` asks of a selector. `hurry` is set when asyncio has something to do; `failed` is
    told what an action raised."""

    def __init__(self) -> None:
        self.hurry = False
        self.failed: Callable[[Exception], None] | None = None
        self._others: Any = selectors.EpollSelector()
        self._poll = select.epoll()
        self._poll.register(self._others.fileno(), select.EPOLLIN)
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
        end_s = 0.0 if timeout is None or timeout <= 0.0 else time.monotonic() + timeout
        left_s = -1.0 if timeout is None else max(timeout, 0.0)
        self.hurry = False
        while True:
            others = False
            ready = self._poll.poll(left_s, EVENTS_MAX)
            for fd, _ in ready:
                action = self._actions.get(fd)
                if action is not None:  # else asyncio's, or unwatched by an action before it
                    self._call(action)
                else:
                    others = True
            if others:
                found: list[Any] = self._others.select(0)
                return found
            if self.hurry or not ready or left_s == 0.0:
                return []
            if left_s > 0.0:
                left_s = end_s - time.monotonic()
                if left_s <= 0.0:
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
        self._others.close()

    def _call(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # whatever it is, the loop goes on, as asyncio's own does
            if self.failed is None:
                raise
            self.failed(error)
