"""How many bytes of requests may be on their way at once: first come, first served, and nobody waits past its deadline.

An arena is finite, and a request that finds no room there fails. Here it waits its turn instead, so that a crowd of
large requests is slow and not refused. A request that is larger than all the room there is runs alone. This module
never allocates. Read `frontdoor/over_node.py` next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from fabric.errors import ArenaFull

if TYPE_CHECKING:
    from fabric.deadline import Deadline

WAITING_MAX = 4096


class Room:  # mutable: counts bytes
    """`nbytes` to share. Used on one loop only."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, nbytes: int, deadline: Deadline) -> None:
        """Takes room, waiting for it if need be. Raises ArenaFull at the deadline, or when too many wait."""
        if not self._waiting and self._fits(nbytes):
            self._taken += nbytes
            return
        if len(self._waiting) >= WAITING_MAX:
            raise ArenaFull(f"{len(self._waiting)} requests wait for room already; try again later")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (nbytes, turn)
        self._waiting.append(entry)
        try:
            async with asyncio.timeout_at(deadline.at_s):
                await turn
        except BaseException as error:  # cancelled or late: the place in the line is given up
            if turn.done() and not turn.cancelled():
                self.give_back(nbytes)  # it came in the same turn of the loop in which the caller left
            else:
                with suppress(ValueError):  # it was passed over in the same turn of the loop, and is gone
                    self._waiting.remove(entry)
                self._serve()
            if isinstance(error, TimeoutError):
                raise ArenaFull(f"{self._nbytes} bytes of requests are on their way already; give more time") from None
            raise

    def give_back(self, nbytes: int) -> None:
        """What was taken is free again."""
        self._taken -= nbytes
        self._serve()

    def _fits(self, nbytes: int) -> bool:
        return not self._taken or self._taken + nbytes <= self._nbytes

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            nbytes, turn = self._waiting.popleft()
            if not turn.done():
                self._taken += nbytes
                turn.set_result(None)
