"""Signs of life: pings of an open channel while it matters, and the probe of one that should be trusted again.

A ping is answered by the peer's own code, so it tells a stopped process from a slow model. A channel that has reason to
doubt its peer, while nothing is out too, has it asked at once. This module never judges: it tells
`fabric/link/wiring.py` what it saw. Read `fabric/link/link.py` next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import OverspillError, ProtocolError
from fabric.link.table import Event, Role, State

if TYPE_CHECKING:
    from fabric.link.config import LinkTimes
    from fabric.link.wiring import Wiring
    from fabric.transport import Channel

_log = logging.getLogger(__name__)


class _Doubt:  # mutable: told, then taken
    """What a channel tells from any thread, for the task that watches it. It holds neither of them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._told = False

    def tell(self) -> None:
        """There is reason to ask now."""
        with suppress(RuntimeError):  # the loop was closed: nobody asks any more
            self._loop.call_soon_threadsafe(self._come)

    def take(self) -> bool:
        """Whether there was, since the last look."""
        told, self._told = self._told, False
        return told

    async def wait(self, timeout_s: float) -> None:
        """Until there is, for `timeout_s` at most."""
        if self._told:
            return
        self._woken.clear()
        timer = self._loop.call_later(timeout_s, self._woken.set)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()

    def _come(self) -> None:
        self._told = True
        self._woken.set()


async def probe_channel(channel: Channel, times: LinkTimes) -> None:
    """Some pings in a row. Raises what kept one from being answered."""
    for _ in range(times.probe_pings):
        await channel.ping(Deadline.after(times.ping_s, time.monotonic()))


async def watch_channel(wiring: Wiring, role: Role, channel: Channel) -> None:
    """Pings a channel for as long as it is one of the link's: often while it matters, at once when the channel doubts
    its peer, else once a second."""
    times = wiring.times
    idle_s, doubt = 0.0, _Doubt()
    try:
        channel.watch(doubt.tell)
        while wiring.channels.get(role) is channel:
            began = time.monotonic()
            if (
                doubt.take()
                or idle_s >= times.idle_ping_s
                or wiring.machine.missed[role]
                or _matters(wiring, role, channel)
            ):
                idle_s = 0.0
                await _ping(wiring, role, channel)
            await doubt.wait(max(0.0, times.ping_s - (time.monotonic() - began)))
            idle_s += times.ping_s
    except Exception:  # noqa: BLE001 - a link whose watch has ended would never fail over: better it ends, and says so
        _log.exception("the watch of a %s wire to node %s failed", role.value, wiring.peer.node_id)
        wiring.handle(Event.CLOSE, "its watch failed; see the log")


def _matters(wiring: Wiring, role: Role, channel: Channel) -> bool:
    if role is Role.PREFERRED and wiring.machine.state in {State.SUSPECT, State.STANDBY}:
        return True
    if role is Role.FALLBACK and wiring.machine.missed[Role.PREFERRED]:
        return True  # is it the wire, or the node?
    return any(one is channel for one in list(wiring.out.values()))


async def _ping(wiring: Wiring, role: Role, channel: Channel) -> None:
    try:
        await channel.ping(Deadline.after(wiring.times.ping_s, time.monotonic()))
    except OverspillError as error:
        if isinstance(error, ProtocolError) or not channel.alive:
            wiring.lost(channel, str(error))
        else:
            wiring.pinged(role, channel, answered=False)
    else:
        wiring.pinged(role, channel, answered=True)
