"""The node's rdma port: answers offers that come over an authenticated call, and serves each connection that follows.

It stands behind a port process of its own, which passes in how to reach the node, so that this wire knows no other.
Who offers too often, or garbage, is refused for a while; everybody else is not disturbed by it. This module never runs
a request. Read `fabric/rdma/serving.py` for one connection.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from fabric.errors import ConfigError, Draining, Fate, NodeLost, OverspillError, ResourceExhausted
from fabric.frame import ErrorFrame, Load, encode_error
from fabric.load_page import PAGE_BYTES
from fabric.rdma.choice import gid_text
from fabric.rdma.config import BULK_DEPTH, CTL_DEPTH, FRAME_ROOM
from fabric.rdma.connection import Connection
from fabric.rdma.domain import Use
from fabric.rdma.heads import NO_REGION
from fabric.rdma.neighbour import find_neighbour_async
from fabric.rdma.populate import populate
from fabric.rdma.registered import address_of
from fabric.rdma.serving import Serving
from fabric.rdma.terms import Terms, agree, check_life, own_versions, pack_terms, read_terms

if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap

    from fabric.rdma.choice import Choice
    from fabric.rdma.engine import Engine
    from fabric.rdma.heads import RegionNote
    from fabric.transport import Channel, PeerFacts

    OpenChannel = Callable[[int, int], Channel]

_log = logging.getLogger(__name__)
PEERS_MAX = 512
OFFERS_PER_S = 10
"""Of one caller: making queue pairs costs the port milliseconds."""
LOOK_S = 1.0
GRACE_S = 3.0


class RdmaListener:  # mutable: its peers come and go
    """Serves the node that `open_channel(client_id, arena_bytes)` reaches, on the engine's loop. `page` is the node's
    load page, which peers may read; while `draining`, nobody new is admitted."""

    def __init__(
        self, engine: Engine, open_channel: OpenChannel, facts: PeerFacts, page: mmap | None = None
    ) -> None:  # fmt: skip
        self._engine, self._open_channel, self._facts, self._page = engine, open_channel, facts, page
        self._peers: set[Serving] = set()
        self._offers: dict[int, list[float]] = {}
        self._closed = self.draining = False
        self._sweeper: asyncio.Task[None] | None = None

    @property
    def peers(self) -> int:
        """Connections that are served, or come to their end."""
        return len(self._peers)

    async def bootstrap(self, client_id: int, payload: bytes) -> tuple[bytes, Serving | None]:
        """The answer to an offer: our terms, and the peer whose line is to be held (`fabric/rdma/line.py`), or an ERROR
        frame that refuses it. Never raises but to be cancelled."""
        try:
            return await self._admit(client_id, payload)
        except OverspillError as error:
            _log.info("client %016x gets no rdma: %s", client_id, str(error))
            error.fate = Fate.NEVER_RAN
            refusal = ErrorFrame(client_id, 0, self._facts.node_epoch, error, Load(0, 0, 0, 0))
            return encode_error(refusal), None

    async def close(self, grace_s: float = GRACE_S) -> None:
        """Says goodbye to every peer, ends their connections, and waits a while for that."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for peer in tuple(self._peers):
            peer.end("the node's rdma port ends")
        end_s = time.monotonic() + grace_s
        while self._engine.links and time.monotonic() < end_s:  # noqa: ASYNC110 - many owners are told, nobody else
            await asyncio.sleep(0.01)
        for peer in tuple(self._peers):
            peer.bury()

    async def _admit(self, client_id: int, payload: bytes) -> tuple[bytes, Serving]:
        self._check_rate(client_id)
        theirs = read_terms(payload)
        facts, engine = self._facts, self._engine
        check_life(theirs, facts.node_id, facts.node_epoch)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().create_task(self._sweep())
        choice = await asyncio.to_thread(engine.choose)  # it reads many small files of the kernel's

        async def open_session(nbytes: int) -> Channel:
            return await asyncio.to_thread(self._open_populated, client_id, nbytes)

        peer = Serving(client_id, facts, engine.config, self._peers.discard)
        connection = Connection(engine, peer, choice, theirs.link_epoch, caller=False)
        self._peers.add(peer)
        try:
            region = await peer.begin(connection, theirs.region, open_session)
            ours = self._terms(connection, choice, theirs, region, self._readable(connection))
            agreed = agree(ours, theirs)
            await find_neighbour_async(choice.address_of(theirs.gid), choice.address, engine.config.resolve_s)
            connection.connect(agreed, theirs)
        except BaseException as error:  # whatever it was, nothing may stay behind it
            connection.close(NodeLost(str(error), Fate.NEVER_RAN))
            raise
        return pack_terms(ours), peer

    def _open_populated(self, client_id: int, nbytes: int) -> Channel:
        """A way to the node whose memory can be registered at once: the loop does that, and others wait for it."""
        channel = self._open_channel(client_id, nbytes)
        if channel.arena is not None and self._engine.budget.has_room(nbytes):
            populate(address_of(channel.arena.map), channel.arena.nbytes)
        return channel

    def _readable(self, connection: Connection) -> RegionNote:
        if self._page is None:
            return NO_REGION
        try:
            registered = connection.register(address_of(self._page), PAGE_BYTES, Use.READ)
        except ConfigError as error:  # a file system whose files cannot be pinned: answers tell the load too
            _log.warning("peers cannot read the load page: %s", error)
            return NO_REGION
        return NO_REGION._replace(base=registered.address, nbytes=PAGE_BYTES, rkey=registered.rkey)

    def _terms(
        self, connection: Connection, choice: Choice, theirs: Terms, region: RegionNote, page: RegionNote
    ) -> Terms:
        ctl, bulk = connection.notes
        oldest, newest = own_versions()
        return Terms(
            oldest, newest, self._facts.node_id, self._facts.node_epoch, theirs.link_epoch, choice.link_layer,
            choice.lid, gid_text(choice.gid), self._engine.mtu(choice), self._engine.read_depth, ctl, bulk,
            CTL_DEPTH, BULK_DEPTH, FRAME_ROOM, theirs.nonce, region, page,
        )  # fmt: skip

    def _check_rate(self, client_id: int) -> None:
        now = time.monotonic()
        if self._closed or self.draining:
            raise Draining(f"node {self._facts.node_id} takes no new callers; ask another one")
        if len(self._peers) >= PEERS_MAX:
            raise ResourceExhausted(f"the node's rdma port serves {PEERS_MAX} connections already; stay on rpc")
        recent = [at for at in self._offers.get(client_id, ()) if at > now - 1.0]
        if len(recent) >= OFFERS_PER_S:
            raise ResourceExhausted(f"{OFFERS_PER_S} rdma connections were asked for within a second; wait a second")
        self._offers[client_id] = [*recent, now]
        if len(self._offers) > 2 * PEERS_MAX:
            self._offers = {key: times for key, times in self._offers.items() if times[-1] > now - 1.0}

    async def _sweep(self) -> None:
        while not self._closed:
            await asyncio.sleep(LOOK_S)
            now = time.monotonic()
            for peer in tuple(self._peers):
                peer.forget(now)
                peer.look()
                if peer.spoke:  # a message does not ask for the time
                    peer.spoke, peer.heard_s = False, now
                if peer.heard_s < now - self._engine.config.silent_s:
                    peer.end("the caller has been silent for too long")
