"""A request whose wire died under it: it moves to the other wire with its id, or its error says what is known.

The node keeps the ids of one life, so the same id over another wire attaches to the running request or gets the kept
answer: it runs at most once. What one attempt could not know (`unknown`) no later refusal makes known, since the first
copy may still arrive. This module never picks a wire: the link's machine did. Read `fabric/transport.py` again, or
`router/` next.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from fabric.errors import (
    DeadlineExceeded,
    Fate,
    NodeLost,
    OverspillError,
    ProtocolError,
    ResourceExhausted,
    StaleEpoch,
)

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.link.wiring import Wiring
    from fabric.transport import Answer, Call, Channel

_ATTEMPT_MAX = 255
_OF_THE_CHANNEL = (NodeLost, ProtocolError, ResourceExhausted)
"""What a dead channel raises (its arena lends nothing any more); any other error is the node's answer."""


class Moves:  # mutable: one request on its way
    """The moves of one request over the wires of one link."""

    def __init__(self, wiring: Wiring) -> None:
        self._wiring = wiring
        self._fate = Fate.NEVER_RAN
        self._epoch: int | None = None
        self._count = 0

    def call_again(
        self, call: Call, deadline: Deadline, channel: Channel | None = None, error: OverspillError | None = None
    ) -> Answer:
        """Sends `call` over the wire that is live now, `channel` having failed with `error`. Raises OverspillError."""
        attempt = call
        try:
            while True:
                if channel is not None and error is not None and not self._may_move(call, channel, error):
                    raise error
                error = None
                channel = self._wait(deadline)
                attempt = self._next(call, attempt, channel)
                try:
                    return channel.call(attempt, deadline)
                except OverspillError as failure:
                    error = failure
        finally:
            error = None  # else error, traceback and this frame hold each other, and the request's memory

    async def call_again_async(
        self, call: Call, deadline: Deadline, channel: Channel | None = None, error: OverspillError | None = None
    ) -> Answer:
        """The same on the background loop."""
        attempt = call
        try:
            while True:
                if channel is not None and error is not None and not self._may_move(call, channel, error):
                    raise error
                error = None
                channel = await self._wait_async(deadline)
                attempt = self._next(call, attempt, channel)
                try:
                    return await channel.call_async(attempt, deadline)
                except OverspillError as failure:
                    error = failure
        finally:
            error = None

    def _may_move(self, call: Call, channel: Channel, error: OverspillError) -> bool:
        """Whether the request should go on over another wire; if not, `error` tells what is known of all attempts."""
        if isinstance(error, StaleEpoch):
            self._wiring.peer_changed(str(error))
        elif not channel.alive and isinstance(error, _OF_THE_CHANNEL):
            self._wiring.lost(channel, str(error))
            self._fate = max(self._fate, error.fate)
            self._epoch = channel.peer.node_epoch
            self._count += 1
            # A stopped node has stopped on all its wires: who may go to another node does not wait for this one.
            stopped = call.movable and self._wiring.is_silent(channel)
            if self._count <= self._wiring.times.moves_max and not stopped:
                return True
        if error.fate is Fate.NEVER_RAN:
            error.fate = self._fate  # an earlier copy may still arrive and run
        return False

    def _next(self, call: Call, attempt: Call, channel: Channel) -> Call:
        self._wiring.out[id(call)] = channel
        if not self._count:
            return call
        self._wiring.moved += 1
        return replace(call, attempt=min(attempt.attempt + 1, _ATTEMPT_MAX))

    def _wait(self, deadline: Deadline) -> Channel:
        while True:
            channel, waiting = self._wiring.next_channel()
            if channel is not None:
                return self._same_life(channel)
            left_s = deadline.remaining_s(time.monotonic())
            if not waiting or not left_s:
                raise self._no_wire(late=waiting)
            self._wiring.wait_change(left_s)

    async def _wait_async(self, deadline: Deadline) -> Channel:
        loop = asyncio.get_running_loop()
        while True:
            changed = asyncio.Event()

            def tell(event: asyncio.Event = changed) -> None:
                with suppress(RuntimeError):  # the loop was closed: nobody waits
                    loop.call_soon_threadsafe(event.set)

            channel, waiting = self._wiring.next_channel(tell)
            if channel is not None:
                return self._same_life(channel)
            left_s = deadline.remaining_s(time.monotonic())
            if not waiting or not left_s:
                raise self._no_wire(late=waiting)
            with suppress(TimeoutError):
                await asyncio.wait_for(changed.wait(), left_s)

    def _same_life(self, channel: Channel) -> Channel:
        """Another life of the node does not know the id: it would run the request again."""
        if self._epoch is None or channel.peer.node_epoch == self._epoch or self._fate is Fate.NEVER_RAN:
            return channel
        raise self._wiring.gone(self._fate)

    def _no_wire(self, *, late: bool) -> OverspillError:
        if late:
            return DeadlineExceeded("the time was over before a wire to the node was open; give more", self._fate)
        return self._wiring.gone(self._fate)
