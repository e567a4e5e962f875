"""The callers that a port serves: each has a session, a channel to the node with an arena of its own, and its lanes.

The table is bounded. A caller that is evicted, or whose node channel died, loses nothing but time: its next message is
answered with "unknown session", it says HELLO again, and the node knows its requests by their ids. This module never
touches a socket. Read `fabric/rpc_fallback/lane_server.py` and `fabric/rpc_fallback/server.py` next.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from threading import Lock
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import Fate, OverspillError, ProtocolError, ResourceExhausted, StaleEpoch, Unavailable
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, Body, RequestId
from fabric.rpc_fallback.exchange import Exchange
from fabric.rpc_fallback.room import call_with_room
from fabric.rpc_fallback.session_line import SessionLine
from fabric.rpc_fallback.wire import SESSION_BYTES, error_outcome, outcome_of
from fabric.transport import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import RequestFrame
    from fabric.layout import Layout
    from fabric.rpc_fallback.config import RpcServerConfig
    from fabric.rpc_fallback.lane import Lane
    from fabric.rpc_fallback.lines import Send
    from fabric.rpc_fallback.wire import Outcome
    from fabric.transport import Channel

    OpenChannel = Callable[[int, int], Channel]

EVICT_IDLE_S = 1.0
"""When the table is full, a caller that has been silent this long makes room for a new one."""
GONE_S = 90.0
"""A caller without a line may have died unnoticed. One that was not heard of for longer than answers are kept loses its
arena, which may be all pages that it ever used; if it lives, its next message costs a Hello."""
LINE_GONE_S = 5.0
"""One whose line is over has so long to be heard of: whoever lives pings at once."""
STOP_LOOK_S = 0.02
REOPEN_S = 0.5
"""A dead way to the node is opened anew at most this often, so that a dead node is not asked by every call."""
_log = logging.getLogger(__name__)


class Peer:  # mutable: one caller's session
    """One caller. `session` goes in front of its messages, `lane_token` opens its lanes."""

    def __init__(self, client_id: int, arena_bytes: int, channel: Channel, reopen: OpenChannel) -> None:
        self.client_id = client_id
        self.session = secrets.token_bytes(SESSION_BYTES)
        self.lane_token = secrets.token_hex(16)
        self.exchange = Exchange()
        self.line = SessionLine()
        self.lanes: set[Lane] = set()
        self.used_s = self.heard_s = time.monotonic()
        self.closed = False
        self._arena_bytes = arena_bytes
        self._channel = channel
        self._reopen = reopen
        self._reopen_from_s = 0.0
        self._lock = Lock()

    @property
    def channel(self) -> Channel:
        """The way to the node; a dead one is opened anew. Raises Unavailable when that fails, or the peer is gone."""
        channel = self._channel
        if channel.alive and not self.closed:
            return channel
        with self._lock:
            now = time.monotonic()
            if self.closed or (not self._channel.alive and now < self._reopen_from_s):
                raise Unavailable("the node behind this port is not there now; ask another one", Fate.NEVER_RAN)
            if not self._channel.alive:
                self._reopen_from_s = now + REOPEN_S
                try:
                    self._channel = self._reopen(self.client_id, self._arena_bytes)
                except OverspillError as error:
                    raise Unavailable(f"the node behind this port does not answer: {error}", Fate.NEVER_RAN) from None
            return self._channel

    def stage(self, nbytes: int) -> Lease | bytearray:
        """Memory for a body that is about to arrive: a slot of the peer's arena, plain for small ones.

        Raises ResourceExhausted when the arena has no room, Unavailable when the node is gone.
        """
        arena = self.channel.arena
        if nbytes < SMALL_BODY_BYTES or arena is None:
            return bytearray(nbytes)
        try:
            return Lease.of(arena, nbytes)
        except ResourceExhausted:
            if not self.exchange.forget_kept():
                raise
            return Lease.of(arena, nbytes)

    def ask(
        self, request: RequestFrame, layout: Layout, memory: Lease | bytes | bytearray, deadline: Deadline
    ) -> Outcome | None:
        """Asks the node, unless this id is running or answered already; returns `memory`'s lease.

        None: a newer asker of the same id gets the answer. The caller of this tells the exchange what became of it.
        """
        request_id = RequestId(request.client_id, request.request_no)
        self.used_s = self.heard_s = time.monotonic()

        def run() -> Outcome:
            epoch = request.node_epoch
            try:
                channel = self.channel
                epoch = channel.peer.node_epoch
                if request.node_epoch not in {0, epoch}:
                    raise StaleEpoch(
                        f"node {channel.peer.node_id} lives its epoch {epoch}, not {request.node_epoch}; open it again"
                    )
                held = memory if isinstance(memory, Lease) else bytes(memory)
                call = Call(
                    request_id,
                    request.model,
                    Body(layout, held),
                    request.ack_no,
                    request.priority,
                    request.attempt,
                    request.reply_capacity,
                )
                return outcome_of(call_with_room(channel, call, deadline, self._make_room), request, epoch)
            except OverspillError as error:
                return error_outcome(error, request_id, epoch)
            except Exception:  # noqa: BLE001 - a bug of ours must still end the caller's wait, with a fate that is true
                _log.exception("request %s failed in the port", request_id)
                bug = OverspillError("the node's port failed on this request; its log tells why, report it")
                return error_outcome(bug, request_id, epoch)

        try:
            return self.exchange.answer(request_id, request.ack_no, run, deadline)
        except OverspillError as error:
            return error_outcome(error, request_id, request.node_epoch)
        finally:
            if isinstance(memory, Lease):
                memory.release()

    def _make_room(self) -> bool:
        return not self.closed and self.exchange.forget_kept() > 0

    def cancel(self, request: RequestId) -> None:
        """The caller gave a request up."""
        if self.exchange.running(request):
            self._channel.cancel(request)

    def hung_up(self, send: Send) -> None:
        """A call that was the caller's line is over, by its doing or by that of the network."""
        if self.line.let_go(send):
            self.heard_s = min(self.heard_s, time.monotonic() - GONE_S + LINE_GONE_S)

    def busy(self) -> bool:
        """Whether a request of this caller is on its way."""
        return self.exchange.busy()

    def close(self, deadline: Deadline) -> None:
        """Closes line, lanes and the node channel."""
        self.closed = True
        self.line.end()
        for lane in tuple(self.lanes):
            lane.wake()
        self.exchange.forget_kept()
        self._channel.close(deadline)

    def abort(self, reason: str) -> None:
        """The same at once."""
        self.closed = True
        self.line.end()
        for lane in tuple(self.lanes):
            lane.wake()
        self._channel.abort(reason)


class Peers:  # mutable: the table of sessions
    """The callers of one port, found by session or by lane token."""

    def __init__(self, config: RpcServerConfig, open_channel: OpenChannel) -> None:
        self._config = config
        self._open = open_channel
        self._lock = Lock()
        self._by_session: dict[bytes, Peer] = {}
        self._opening = 0
        self._closed = False

    def admit(self, client_id: int, arena_bytes: int) -> Peer:
        """Opens a session. Raises ResourceExhausted when the table is full, or what opening the channel raises."""
        size = min(arena_bytes or self._config.arena_bytes, self._config.arena_bytes_max)
        with self._lock:
            evicted = self._make_room()
            self._opening += 1
        try:
            if evicted is not None:
                evicted.close(Deadline(time.monotonic()))
            peer = Peer(client_id, size, self._open(client_id, size), self._open)
        except BaseException:  # whatever it was, the place in the table must be free again
            with self._lock:
                self._opening -= 1
            raise
        with self._lock:
            self._opening -= 1
            if not self._closed:
                self._by_session[peer.session] = peer
                return peer
        peer.abort("the port is closing")
        raise Unavailable("the node's port is closing; ask another node", Fate.NEVER_RAN)

    def find(self, session: bytes) -> Peer | None:
        """The caller of a session; None for an unknown one."""
        return self._by_session.get(session)

    def find_by_lane(self, client_id: int, token: str) -> Peer | None:
        """The caller that a lane's token was given to; compared in constant time."""
        with self._lock:
            known = [peer for peer in self._by_session.values() if peer.client_id == client_id]
        given = token.encode(errors="replace")
        for peer in known:
            if hmac.compare_digest(peer.lane_token.encode(), given):
                return peer
        return None

    def drop(self, peer: Peer, deadline: Deadline) -> None:
        """Ends a session."""
        with self._lock:
            self._by_session.pop(peer.session, None)
        peer.close(deadline)

    def break_off(self, peer: Peer, error: ProtocolError) -> None:
        """Ends the session of a caller that sent what is no frame."""
        # Its text, because a record that holds the error holds the peer's arena through the traceback.
        _log.warning("closed the session of client %016x: %s", peer.client_id, str(error))
        with self._lock:
            self._by_session.pop(peer.session, None)
        peer.abort(str(error))

    def sweep(self, now: float) -> None:
        """Ends sessions that have been idle too long, or whose callers are gone: a link pings once a second."""
        idle_from_s, gone_from_s = now - self._config.peer_idle_s, now - GONE_S
        with self._lock:
            idle = [
                peer
                for peer in self._by_session.values()
                if (peer.used_s < idle_from_s or peer.heard_s < gone_from_s) and not peer.busy()
            ]
            for peer in idle:
                del self._by_session[peer.session]
        for peer in idle:
            peer.close(Deadline(now))

    def end_lines(self, deadline: Deadline) -> None:
        """Hangs up on everybody as soon as nobody has a request here: who hears of the end takes the port for dead."""
        peers = tuple(self._by_session.values())
        while any(peer.busy() for peer in peers) and not deadline.expired(time.monotonic()):
            time.sleep(STOP_LOOK_S)
        time.sleep(STOP_LOOK_S)  # for the last answer, which is being sent
        for peer in peers:
            peer.line.end()

    def close(self, deadline: Deadline) -> None:
        """Ends every session and admits no more."""
        with self._lock:
            self._closed = True
            peers = tuple(self._by_session.values())
            self._by_session.clear()
        for peer in peers:
            peer.close(deadline)

    def __len__(self) -> int:
        return len(self._by_session)

    def _make_room(self) -> Peer | None:
        if len(self._by_session) + self._opening < self._config.peers_max:
            return None
        idle_from_s = time.monotonic() - EVICT_IDLE_S
        idle = [peer for peer in self._by_session.values() if peer.used_s < idle_from_s and not peer.busy()]
        if not idle:
            raise ResourceExhausted(
                f"the node's port serves {self._config.peers_max} callers, all of them busy; try another node"
            )
        return self._by_session.pop(min(idle, key=lambda peer: peer.used_s).session)
