"""Works that are waited for together, whoever does them: a wait that is cancelled ends when those that began have.

Read `frontdoor/copies.py` next.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Generic, TypeVar

Outcome = TypeVar("Outcome")


class Together(Generic[Outcome]):  # mutable: counts outcomes
    """`count` works, waited for on the loop that made it."""

    __slots__ = ("_count", "_loop", "_outcomes", "_waiter", "given_up")

    def __init__(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = count
        self._outcomes: list[Outcome] = []
        self._waiter: asyncio.Future[None] | None = None
        self.given_up = False
        """Nobody wants the outcomes any more: a work that has not begun is to be ended without being done."""

    def end(self, outcome: Outcome) -> None:
        """One of them has ended; called on the loop."""
        self._outcomes.append(outcome)
        if len(self._outcomes) == self._count:
            self._wake()

    def end_elsewhere(self, outcome: Outcome) -> None:
        """The same, in whatever thread."""
        self._outcomes.append(outcome)
        if len(self._outcomes) == self._count:  # of two at the same moment both may see it
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._wake)

    async def wait(self) -> list[Outcome]:
        """What they came to, in the order of their ends. It is the caller's, and not kept here. A wait that is
        cancelled says so afterwards."""
        cancelled: asyncio.CancelledError | None = None
        while len(self._outcomes) < self._count:
            self._waiter = self._loop.create_future()  # not shielded, which takes a turn of the loop more
            try:
                await self._waiter
            except asyncio.CancelledError as error:
                cancelled, self.given_up = error, True
        outcomes, self._outcomes = self._outcomes, []
        self._count = 0
        if cancelled is not None:
            outcomes.clear()
            try:
                raise cancelled
            finally:
                cancelled = None  # else the error, its traceback and this frame hold each other
        return outcomes

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
