"""How a call waits for what other threads do: in its own thread, or on an asyncio loop; the rest is the same for both.

Whatever happened, the bell is rung; whoever waits looks again. This module never looks. Read `fabric/rdma/channel.py`
next.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline

_T = TypeVar("_T")
Ring = "Callable[[], None]"
Life = "Generator[None, None, _T]"


def wait_through(make: Callable[[Callable[[], None]], Generator[None, None, _T]], deadline: Deadline) -> _T:
    """Runs a life that yields whenever it must wait for its bell or the deadline; in the calling thread."""
    bell: SimpleQueue[None] = SimpleQueue()  # a queue in C: a third of the cost of an event
    life = make(lambda: bell.put(None))
    try:
        while True:
            next(life)
            with suppress(Empty):
                bell.get(timeout=max(0.0, deadline.at_s - time.monotonic()))
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        life.close()


async def await_through(make: Callable[[Callable[[], None]], Generator[None, None, _T]], deadline: Deadline) -> _T:
    """The same on the running loop."""
    loop = asyncio.get_running_loop()
    bell = asyncio.Event()

    def ring() -> None:
        with suppress(RuntimeError):  # the loop was closed: nobody waits
            loop.call_soon_threadsafe(bell.set)

    life = make(ring)
    try:
        while True:
            next(life)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline.at_s):
                    await bell.wait()
            bell.clear()
    except StopIteration as end:
        result: _T = end.value
        return result
    finally:
        life.close()
