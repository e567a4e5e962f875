"""A call of the main thread, which the loop's thread goes through, since a signal's handler may raise anywhere in ours.

Raised in the middle of what is sent, it leaves a connection that nobody can make whole again: the message is out, and
its sender takes it for one that is not. So the main thread only waits here, and what a handler raises cancels the call.
This module never looks at a call. Read `fabric/rdma/channel.py` next.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from fabric.errors import DeadlineExceeded, Fate, NodeLost

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fabric.deadline import Deadline

_T = TypeVar("_T")
LATE_S: Final = 10.0
"""The loop keeps the deadline; one that stands still for so long behind it is not waited for."""


class _Handed(Generic[_T]):  # mutable: begun, then over
    """What is handed over; all but `outcome` is the loop's thread's."""

    def __init__(self, make: Callable[[], Coroutine[None, None, _T]]) -> None:
        self.outcome: SimpleQueue[_T | BaseException] = SimpleQueue()
        self._make = make
        self._task: asyncio.Task[_T] | None = None
        self._given_up = False

    def begin(self) -> None:
        """Begins, if nobody has given it up."""
        if not self._given_up:
            self._task = asyncio.ensure_future(self._make())
            self._task.add_done_callback(self._ended)

    def give_up(self) -> None:
        """Nobody waits for it any more."""
        self._given_up = True
        if self._task is not None:
            self._task.cancel()

    def _ended(self, task: asyncio.Task[_T]) -> None:
        self._task = None
        if task.cancelled():
            self.outcome.put(NodeLost("the loop of the rdma wire ended in the middle of a call", Fate.UNKNOWN))
        else:
            self.outcome.put(task.exception() or task.result())


def hand_over(make: Callable[[], Coroutine[None, None, _T]], deadline: Deadline, loop: asyncio.AbstractEventLoop) -> _T:
    """Goes through what `make` makes on that loop, which turns in another thread, and waits here. Raises what it does,
    and DeadlineExceeded where the loop stands still."""
    handed = _Handed(make)
    try:
        loop.call_soon_threadsafe(handed.begin)
        outcome = handed.outcome.get(timeout=deadline.remaining_s(time.monotonic()) + LATE_S)
    except Empty:
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(handed.give_up)
        raise DeadlineExceeded("the loop of the rdma wire stands still; let it turn", Fate.UNKNOWN) from None
    except BaseException:  # a signal's handler has raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(handed.give_up)
        raise
    if isinstance(outcome, BaseException):
        try:
            raise outcome
        finally:
            del outcome  # else error, traceback and this frame hold each other
    return outcome
