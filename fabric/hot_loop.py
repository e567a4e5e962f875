"""An asyncio loop that calls some descriptors' actions without a turn of its own: what a port takes for each request.

Everything else is asyncio's: tasks, timers, other descriptors. Actions run in the loop's thread and must not block, as
with `add_reader`; what they raise goes to the loop's exception handler. `watch` and `unwatch` take any asyncio loop, so
that who uses them need not know which one it has. This module never decides what is hot. Read `fabric/rdma/engine.py`
for one that does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVarTuple

from fabric.hot_selector import HotSelector

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context


_Ts = TypeVarTuple("_Ts")


class HotLoop(asyncio.SelectorEventLoop):
    """The loop: give it to `asyncio.Runner(loop_factory=HotLoop)`."""

    def __init__(self) -> None:
        self.hot = HotSelector()
        asks: Any = self.hot  # all that asyncio asks of a selector
        super().__init__(asks)
        self.hot.failed = self._failed

    def time(self) -> float:
        """As asyncio's."""
        now = self.hot.now = super().time()
        return now

    def call_soon(
        self, callback: Callable[[*_Ts], object], *args: *_Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """As asyncio's."""
        self.hot.hurry = True
        return super().call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*_Ts], object], *args: *_Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:  # fmt: skip
        """As asyncio's."""
        self.hot.hurry = True
        return super().call_at(when, callback, *args, context=context)

    def _failed(self, error: Exception) -> None:
        self.call_exception_handler({"message": "an action of a descriptor failed", "exception": error})


def watch(loop: asyncio.AbstractEventLoop, fd: int, action: Callable[[], None]) -> None:
    """Calls `action` in the loop's thread whenever the descriptor can be read. Call it there too."""
    if isinstance(loop, HotLoop):
        loop.hot.watch(fd, action)
    else:
        loop.add_reader(fd, action)


def unwatch(loop: asyncio.AbstractEventLoop, fd: int) -> None:
    """Stops that. Harmless twice."""
    if not (isinstance(loop, HotLoop) and loop.hot.unwatch(fd)):
        loop.remove_reader(fd)
