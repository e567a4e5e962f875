"""The line of a connection: the authenticated call that brought its offer, which stays open as long as the queue pairs.

RDMA tells nothing of a peer that died; the end of a stream does, within milliseconds. A line that the other side has
ended ends the connection. One that broke may mean a process between them that was started again, so then the peer's NIC
is asked, and given the time of one acknowledgement. This module knows no transport: whoever opens a connection brings
its line. Read `fabric/rdma/channel.py` for the caller's end, `fabric/rdma/listener.py` for the node's.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fabric.rdma.serving import Serving


class Line(Protocol):
    """The caller's end of a line."""

    def watch(self, ended: Callable[[str, bool], None]) -> None:
        """From now on `ended(why, told)` is called once, from any thread, when the line is over; `told` says that the
        other side ended it, and that it did not just break."""

    def close(self) -> None:
        """Hangs up. Safe from any thread, twice too."""


async def hold_line(peer: Serving, hung_up: Awaitable[object]) -> None:
    """The node's end: until the connection is over, or `hung_up` says that the caller's line is. Never raises but to be
    cancelled."""

    async def listen() -> None:
        with suppress(OSError):
            await hung_up

    listening = asyncio.ensure_future(listen())
    over = asyncio.ensure_future(peer.over.wait())
    try:
        await asyncio.wait((listening, over), return_when=asyncio.FIRST_COMPLETED)
        if not over.done():
            peer.doubt("the caller's line is over")
    finally:
        for each in (listening, over):
            each.cancel()
        await asyncio.gather(listening, over, return_exceptions=True)
