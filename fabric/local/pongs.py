"""Signs of life that a channel has asked its node for: which are out, and who waits for each.

All of it belongs to the loop's thread. This module never sends. Read `fabric/local/mux.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded
from fabric.hello import decode_pong

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.frame import Header, Load

NO_ANSWER = "no answer came in time; give more time"


class Pongs:  # mutable: what is out
    """The pings of one socket."""

    __slots__ = ("_number", "out")

    def __init__(self) -> None:
        self.out: dict[int, asyncio.Future[Load]] = {}
        self._number = 0

    def next(self) -> int:
        """The number of the next ping."""
        self._number += 1
        return self._number

    async def wait(self, number: int, deadline: Deadline) -> Load:
        """What the node answers to the ping of this number, which was sent. Raises DeadlineExceeded, or what ended the
        session."""
        loop = asyncio.get_running_loop()
        pong: asyncio.Future[Load] = loop.create_future()
        self.out[number] = pong
        timer = loop.call_at(deadline.at_s, expire, pong)
        try:
            return await pong
        finally:
            timer.cancel()
            self.out.pop(number, None)
            del pong

    def came(self, frame: bytes, header: Header) -> None:
        """A PONG, of one that is awaited or not any more. Raises ProtocolError."""
        pong = self.out.get(header.request_no)
        load = decode_pong(frame, header)
        if pong is not None and not pong.done():
            pong.set_result(load)


def expire(final: asyncio.Future[bytes] | asyncio.Future[Load]) -> None:
    """The time of whoever waits is over."""
    if not final.done():
        final.set_exception(DeadlineExceeded(NO_ANSWER))
