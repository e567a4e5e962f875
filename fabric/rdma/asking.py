"""How the node's end of a connection asks the node: in which session, and what is done when its arena is full.

A reply that finds no room in the session's arena is asked for again in a larger one, which is made once for all that
wait for it; where none may be made it waits for those that run beside it, and only what would find no room alone is
told to take another wire. Whatever uses a session is counted, so that it does not end under a request. This module
never answers the peer. Read `fabric/rdma/serving.py` next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import (
    ArenaFull,
    Cancelled,
    DeadlineExceeded,
    NodeLost,
    OverspillError,
    QueueFull,
    ResourceExhausted,
    StaleEpoch,
    WireTooSmall,
)
from fabric.memory.lease import Lease
from fabric.message import RequestId
from fabric.rdma.heads import HeadKind, pack_region
from fabric.transport import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import RequestFrame
    from fabric.message import Body
    from fabric.rdma.config import RdmaConfig
    from fabric.rdma.delivery import Delivery
    from fabric.rdma.kept import Kept
    from fabric.rdma.regions import NodeRegion, NodeRegions
    from fabric.transport import Answer, PeerFacts

_log = logging.getLogger(__name__)
TASKS_MAX = 1024


class Asking:  # mutable: regions grow and shrink
    """The questions of one peer to the node. `over` says that the connection is lost."""

    def __init__(
        self, client_id: int, facts: PeerFacts, config: RdmaConfig, regions: NodeRegions, way_back: Delivery,
        kept: Kept,
    ) -> None:  # fmt: skip
        self._client_id, self._facts, self._config = client_id, facts, config
        self._regions, self._way_back = regions, way_back
        self._growing = asyncio.Lock()
        self._waiting: dict[RequestId, bool] = {}
        self.kept = kept
        self.over = False

    def begin(
        self, request: RequestFrame, body: Body, region: NodeRegion, running: int,
        done: Callable[[Answer | OverspillError], None],
    ) -> bool:  # fmt: skip
        """Asks the node without a coroutine, which costs half: `done` gets the outcome. False where the request needs
        more care: `answer` gives it, and nothing was sent. An ArenaFull or ReplyTooLarge that comes needs it too."""
        begins = region.begins
        if begins is None or running > TASKS_MAX or request.node_epoch not in {0, self._facts.node_epoch}:
            return False
        kept, number = self.kept, request.request_no
        if kept.any:
            kept.acknowledge(request.ack_no, time.monotonic())
            if kept.knows(number):
                return False

        def ended(outcome: Answer | OverspillError) -> None:
            if not isinstance(outcome, OverspillError) and isinstance(outcome.memory, Lease):
                kept.keep(number, outcome, time.monotonic())
            done(outcome)

        return begins.begin(self._call(request, body), request.budget_us, ended)

    async def answer(self, request: RequestFrame, body: Body, region: NodeRegion, running: int) -> Answer:
        """The node's answer to a request that lies in `region`, one of `running`. Raises OverspillError."""
        now = time.monotonic()
        self.kept.acknowledge(request.ack_no, now)
        kept = self.kept.find(request.request_no)
        if kept is not None:
            return kept
        facts = self._facts
        if request.node_epoch not in {0, facts.node_epoch}:
            raise StaleEpoch(
                f"node {facts.node_id} lives its epoch {facts.node_epoch}, not {request.node_epoch}; open it again"
            )
        if running > TASKS_MAX:
            raise QueueFull(f"{TASKS_MAX} requests of this caller are here already; send fewer at once")
        call = self._call(request, body)
        answer = await self._asked(call, Deadline.from_remaining_us(request.budget_us, now), region)
        self.kept.keep(request.request_no, answer, time.monotonic())
        return answer

    def cancel(self, request: RequestId) -> None:
        """The caller gave it up: it waits for room no longer."""
        if request in self._waiting:
            self._waiting[request] = True
            self._regions.freed()

    async def resize(self, window_bytes: int) -> None:
        """The peer asks for a region of another size; it gets one, or the reason why not."""
        wanted = max(self._config.arena_bytes, 2 << max(window_bytes - 1, 0).bit_length())
        try:
            if wanted > self._config.arena_bytes_max:
                raise ResourceExhausted(f"the rdma port lends a caller {self._config.arena_bytes_max} bytes at most")
            async with self._growing:
                await self._larger(wanted)
        except OverspillError as error:
            self._way_back.tell(HeadKind.REFUSED, str(error).encode()[:512])

    def _call(self, request: RequestFrame, body: Body) -> Call:
        return Call(
            RequestId(request.client_id, request.request_no), request.model, body, request.ack_no, request.priority,
            request.attempt, min(request.reply_capacity, self._config.arena_bytes_max),
        )  # fmt: skip

    async def _asked(self, call: Call, deadline: Deadline, region: NodeRegion) -> Answer:
        """The node's answer; where its arena has no room for the reply, a larger one is made, then kept ones go, then
        it waits for those that run."""
        try:
            while True:
                with self._regions.used(region):
                    try:
                        return await region.channel.call_async(call, deadline)
                    except ArenaFull as error:
                        full = error.with_traceback(None)
                    roomier = await self._roomier(region)
                if roomier is not None:
                    region = roomier
                elif not self.kept.give_up(time.monotonic()):
                    self._check(call, full, deadline, region)
                    await self._regions.room()
        finally:
            self._waiting.pop(call.id, None)

    def _check(self, call: Call, full: ArenaFull, deadline: Deadline, region: NodeRegion) -> None:
        """Whether a request that finds no room now may wait for some. Raises OverspillError."""
        if full.needed_bytes > region.reply_bytes_max:
            raise WireTooSmall(
                f"a reply of {full.needed_bytes} bytes does not fit the {region.arena.nbytes} that the rdma port lends"
                " a caller; use rpc",
                full.fate,
            )
        if deadline.expired(time.monotonic()):
            raise DeadlineExceeded(f"the time was over before there was room for the reply ({full})", full.fate)
        if self._waiting.setdefault(call.id, False):
            raise Cancelled("it was given up while it waited for room", full.fate)
        if self.over:
            raise NodeLost("the connection ended while the request waited for room; ask over another", full.fate)

    async def _roomier(self, region: NodeRegion) -> NodeRegion | None:
        """A larger region than this, where that is allowed and may be pinned: one is made for all that want it."""
        async with self._growing:
            newest = self._regions.newest
            if newest.arena.nbytes > region.arena.nbytes:
                return newest
            size = 4 * region.arena.nbytes
            if size > self._config.arena_bytes_max or self.over:
                return None
            try:
                return await self._larger(size)
            except OverspillError as error:
                _log.info("client %016x gets no larger region: %s", self._client_id, str(error))
                return None

    async def _larger(self, size: int) -> NodeRegion:
        larger = await self._regions.add(size)
        self._way_back.tell(HeadKind.REGION, pack_region(larger.note))
        return larger
