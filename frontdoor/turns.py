"""Questions to somebody who has better things to do: one at a time, with pauses, and an answer for all who wait for it.

A node answers questions about its models in the loop that its requests pass. Clients may ask as often as they like, so
what they ask together is asked once, and the node is left alone as long as the last answer took. Nobody gets an answer
that is older than his question. This module knows no question. Read `frontdoor/desk.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable

T = TypeVar("T")
PAUSE_MAX_S = 0.1


class Turns:  # mutable: who waits for what
    """Used on one loop."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: dict[Hashable, asyncio.Task[Any]] = {}
        self._free_at_s = 0.0

    async def ask(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        """The answer to `question`, shared with all who ask the same `key` before it is put. Raises what it raises."""
        waiting = self._next.get(key)
        if waiting is None:
            waiting = self._next[key] = asyncio.create_task(self._put(key, question))
            waiting.add_done_callback(_looked_at)
        # Whoever gives up leaves the answer to the others.
        answer: T = await asyncio.shield(waiting)
        return answer

    async def _put(self, key: Hashable, question: Callable[[], Awaitable[T]]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with self._turn:
                await asyncio.sleep(max(0.0, self._free_at_s - loop.time()))
                del self._next[key]  # who comes from now on waits for a later answer
                began_s = loop.time()
                try:
                    return await question()
                finally:
                    now_s = loop.time()
                    self._free_at_s = now_s + min(now_s - began_s, PAUSE_MAX_S)
        finally:
            if self._next.get(key) is asyncio.current_task():  # it ended before it was put
                del self._next[key]


def _looked_at(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()  # all who waited may be gone
