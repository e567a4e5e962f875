"""A link: all wires to one life of one node, as one thing to call.

The machine decides, the wiring carries it out; a call reads where it should go and goes there. Where its channel dies
under it, it moves (`fabric/link/moves.py`, next). This module never retries at another node; the router does.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from fabric.begins import ServesLoops
from fabric.deadline import Deadline
from fabric.errors import Fate, NodeLost, OverspillError, StaleEpoch, WireTooSmall
from fabric.link.moves import Moves
from fabric.link.pages import read_page
from fabric.link.table import Event, Role, State
from fabric.link.wires import wires_to
from fabric.link.wiring import Wiring

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fabric.link.loop import LoopThread
    from fabric.link.wires import LinkConfig, Peer, Wires
    from fabric.load_page import Reading
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.transport import Answer, Call, Channel, PeerFacts, WireName


@dataclass(frozen=True, slots=True)
class LinkStatistics:
    """A link at one moment: its state, the wire in use, requests out, requests that moved so far, changes of the wire,
    whether the wire in use misses pings, and the last transitions."""

    state: State
    wire: WireName | None
    in_flight: int
    moved: int
    changes: int
    suspect: bool
    story: tuple[str, ...]


class Link:
    """All wires to `peer`. Made by `connect`; `on_change` is called (from any thread, without locks) after its state
    changed."""

    def __init__(
        self,
        peer: Peer,
        wires: Wires,
        config: LinkConfig,
        loop: LoopThread,
        on_change: Callable[[Link], None] | None = None,
    ) -> None:
        tell = None if on_change is None else lambda: on_change(self)
        self._loop = loop
        self._judged: tuple[Channel | None, ServesLoops | None] = None, None
        self._wiring = Wiring(peer, wires, config, loop, tell)

    @classmethod
    def connect(
        cls,
        peer: Peer,
        client_id: int,
        config: LinkConfig,
        loop: LoopThread,
        *,
        wait: bool = True,
        on_change: Callable[[Link], None] | None = None,
        made: Callable[[Link], None] | None = None,
    ) -> Self:
        """Opens a link to a node; `peer` may be an instance of discovery. With `wait`, a wire is live when it returns
        (at most `connect_s` for each wire), else calls wait for that; `made` gets it before, and may abort it.

        Raises NodeLost when no wire leads there from this host, and with `wait` whatever kept the last wire from
        opening: Unavailable, AccessDenied, ConfigError, …
        """
        wires = wires_to(peer, client_id, config)
        if wires.preferred is None and wires.fallback is None:
            mend = "allow rpc, or start it with --listen"
            if peer.rpc and config.rdma and not config.rpc and not peer.rdma:
                mend = "it offers no rdma: allow rpc, or start it with --wires local,rdma,rpc where there is a device"
            raise NodeLost(f"no wire leads to node {peer.node_id} from this host; {mend}", Fate.NEVER_RAN)
        link = cls(peer, wires, config, loop, on_change)
        if made is not None:
            made(link)
        link.start(Deadline.after(2.5 * config.times.connect_s, time.monotonic()) if wait else None)
        return link

    def start(self, deadline: Deadline | None = None) -> None:
        """Begins to connect; with a deadline, waits until a wire is live. Raises what kept the last wire from opening,
        and the link is then closed."""
        self._wiring.handle(Event.PROBE_DUE, "connecting")
        error = None if deadline is None else self._wiring.wait_live(deadline)
        if error is not None:
            self.abort("the link could not be connected")
            try:
                raise error
            finally:
                del error  # else error, traceback and this frame hold each other

    @property
    def peer(self) -> PeerFacts | None:
        """What the node said of itself when a wire opened last; None before."""
        return self._wiring.facts

    @property
    def arena(self) -> Arena | None:
        """Where inputs for this node are best staged: the arena of the wire in use, if it has one."""
        channel = self._wiring.current
        return None if channel is None else channel.arena

    @property
    def wire(self) -> WireName | None:
        """How new requests move; None while no wire is live."""
        channel = self._wiring.current
        return None if channel is None else channel.wire

    @property
    def alive(self) -> bool:
        """Whether requests have a wire, or soon will."""
        return self._wiring.machine.state not in {State.DOWN, State.CLOSED}

    @property
    def suspect(self) -> bool:
        """Whether the wire in use misses pings now: the node may be stopped."""
        wiring = self._wiring
        missed, doubted = wiring.machine.missed, wiring.times.suspect_missed
        return any(wiring.channels.get(role) is wiring.current and missed[role] >= doubted for role in Role)

    @property
    def trouble(self) -> str:
        """Why the better wire is not the one in use, where one was tried; empty while it is."""
        wiring = self._wiring
        channel = wiring.current
        fallen = channel is not None and wiring.channels.get(Role.FALLBACK) is channel
        return wiring.preferred_trouble if fallen else ""

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt over the live wire and waits in the calling thread; it moves when its wire dies.

        Raises OverspillError; NodeLost when no wire is left or another life of the node answers.
        """
        wiring = self._wiring
        channel = wiring.current
        out, key = wiring.out, id(call)
        out[key] = channel
        if not call.movable:
            wiring.bound[key] = None
        failure: OverspillError | None = None
        try:
            if channel is not None:
                try:
                    return channel.call(call, deadline)
                except OverspillError as error:
                    if channel.alive and not isinstance(error, StaleEpoch):
                        other = wiring.beside(channel) if isinstance(error, WireTooSmall) else None
                        if other is None:
                            raise
                        out[key] = other
                        return other.call(call, deadline)
                    failure = error
            return Moves(wiring).call_again(call, deadline, channel, failure)
        finally:
            failure = None  # an error's traceback holds this frame: it must not hold the error too
            out.pop(key, None)
            wiring.bound.pop(key, None)

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """The same, awaited on whatever loop; cancelling it cancels the request at the node."""
        wiring = self._wiring
        channel = wiring.current
        out, key = wiring.out, id(call)
        out[key] = channel
        if not call.movable:
            wiring.bound[key] = None
        failure: OverspillError | None = None
        try:
            if channel is not None:
                try:
                    return await self._awaited(channel, call, deadline)
                except OverspillError as error:
                    if channel.alive and not isinstance(error, StaleEpoch):
                        other = wiring.beside(channel) if isinstance(error, WireTooSmall) else None
                        if other is None:
                            raise
                        out[key] = other
                        return await self._awaited(other, call, deadline)
                    failure = error
            again = Moves(wiring).call_again_async(call, deadline, channel, failure)
            return await (again if self._loop.in_loop() else self._handed_over(again))
        finally:
            failure = None  # an error's traceback holds this frame: it must not hold the error too
            out.pop(key, None)
            wiring.bound.pop(key, None)

    async def _awaited(self, channel: Channel, call: Call, deadline: Deadline) -> Answer:
        """The call on the running loop where the channel serves that, else on the background loop."""
        if not self._loop.in_loop():
            running = asyncio.get_running_loop()
            able = self._serving(channel)
            if able is None or not able.serves(running):
                if able is not None and able.welcomes(running):
                    self._loop.run_blocking(partial(able.serve, running))
                return await self._handed_over(channel.call_async(call, deadline))
        return await channel.call_async(call, deadline)

    def _serving(self, channel: Channel) -> ServesLoops | None:
        """The channel, if it can serve loops: asked once, since to ask costs microseconds."""
        judged, able = self._judged
        if judged is not channel:
            able = channel if isinstance(channel, ServesLoops) else None
            self._judged = channel, able
        return able

    async def _handed_over(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        return await asyncio.wrap_future(self._loop.submit(coroutine))

    def read_page(self, deadline: Deadline) -> Reading:
        """The node's load page over the live wire, with our own line read first. Blocks. Raises NodeLost, Unavailable
        where the wire reads none, DeadlineExceeded."""
        return read_page(self._wiring.current, deadline)

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end of a running call; its own outcome still comes."""
        for channel in list(self._wiring.channels.values()):
            channel.cancel(request)

    def close(self, deadline: Deadline) -> None:
        """Takes no new call, waits for the running ones until the deadline, then ends the link."""
        channels = self._wiring.begin_close("the link was closed; connect again")
        for channel in channels:
            channel.close(deadline)
        self.abort("the link was closed; connect again")

    def abort(self, reason: str) -> None:
        """Ends at once: every running call raises `NodeLost`. Safe from any thread, twice too."""
        self._wiring.handle(Event.CLOSE, reason)

    def statistics(self) -> LinkStatistics:
        """The link now."""
        wiring = self._wiring
        with wiring.changed:
            machine = wiring.machine
            facts = (machine.state, self.wire, len(wiring.out), wiring.moved, machine.changes)
            return LinkStatistics(*facts, self.suspect, machine.story)

    def __repr__(self) -> str:
        wire, wiring = self.wire, self._wiring
        on = "no wire" if wire is None else wire.value
        return f"<Link to {wiring.peer.node_id} {wiring.machine.state.value} on {on}>"
