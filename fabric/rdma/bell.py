"""How a call waits for what other threads do: in its own thread, or on an asyncio loop; the rest is the same for both.

Whatever happened, the bell is rung; whoever waits looks again. A thread that waits takes completions meanwhile, if no
other does. This module never looks. Read `fabric/rdma/channel.py` next.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline
    from fabric.rdma.rounds import Rounds

_T = TypeVar("_T")
Ring = "Callable[[], None]"
Life = "Generator[None, None, _T]"


class Bell:  # mutable: rung, then heard
    """The bell of a thread that waits."""

    __slots__ = ("_rings", "_wake", "_whose", "rung")

    def __init__(self) -> None:
        self.rung = False
        """Whether it was rung since it was heard."""
        self._rings: SimpleQueue[None] | None = None
        """Where it waits while another thread takes completions; a queue in C: a third of the cost of an event."""
        self._whose = get_ident()
        self._wake = -1

    def ring(self) -> None:
        """Something happened. Safe from any thread."""
        self.rung = True  # before it is looked whether somebody waits, who looks at this after that
        rings = self._rings
        if rings is not None:
            rings.put(None)
        wake = self._wake
        if wake >= 0 and get_ident() != self._whose:
            with suppress(OSError):  # it has just been closed: the thread waits there no more
                os.eventfd_write(wake, 1)

    def wakes(self, fd: int) -> None:
        """The thread waits at this event descriptor now; -1 for none."""
        self._wake = fd

    def wait(self, end_s: float, rounds: Rounds) -> None:
        """Until it is rung, or the time is up."""
        if not self.rung and not rounds.lead(self, end_s):
            rings = self._rings
            if rings is None:
                rings = self._rings = SimpleQueue()
            rounds.waits(self)
            try:
                if not self.rung:
                    with suppress(Empty):
                        rings.get(timeout=max(0.0, end_s - time.monotonic()))
            finally:
                rounds.waits_no_more(self)
        self.rung = False


def wait_through(
    make: Callable[[Callable[[], None]], Generator[None, None, _T]], deadline: Deadline, rounds: Rounds
) -> _T:
    """Runs a life that yields whenever it must wait for its bell or the deadline; in the calling thread, which takes
    the completions of `rounds` meanwhile."""
    bell = Bell()
    life = make(bell.ring)
    try:
        while True:
            next(life)
            bell.wait(deadline.at_s, rounds)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        life.close()


class _LoopBell:  # mutable: rung, then heard
    """The bell of a coroutine."""

    __slots__ = ("_loop", "_rung", "_waiting", "_whose")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._whose = get_ident()
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Something happened. Safe from any thread."""
        if get_ident() == self._whose:
            self._ring()
            return
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._rung = True
        waiting = self._waiting
        if waiting is not None and not waiting.done():
            waiting.set_result(None)

    async def wait(self, end_s: float, rounds: Rounds) -> None:
        """Until it is rung, or the time is up."""
        if not self._rung:
            self._waiting = waiting = self._loop.create_future()
            timer = self._loop.call_at(end_s, self._ring)
            rounds.waits(self)
            try:
                await waiting
            finally:
                rounds.waits_no_more(self)
                timer.cancel()
                self._waiting = None
        self._rung = False


async def await_through(
    make: Callable[[Callable[[], None]], Generator[None, None, _T]], deadline: Deadline, rounds: Rounds
) -> _T:
    """The same on the running loop."""
    bell = _LoopBell(rounds.running_loop())
    life = make(bell.ring)
    try:
        while True:
            next(life)
            await bell.wait(deadline.at_s, rounds)
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        life.close()
