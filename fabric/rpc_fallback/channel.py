"""The caller's end of the rpc wire: one channel to one node's port.

A blocking call takes a lane that is free, from the caller's own thread; one that finds none, or whose lane breaks,
takes gRPC with the same id, which the port answers without running it twice: one message each way for a small body, the
stream for a large one. Small and large calls have lanes of their own, so that neither waits for the other.
This module never chooses a node or another wire, and never shows gRPC's exceptions. Read
`fabric/rpc_fallback/service.py` for the other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Condition, Lock
from typing import TYPE_CHECKING, Self

from fabric.dialling import GIVEN_UP, Dialling
from fabric.errors import Fate, NodeLost, OverspillError, ProtocolError, ReplyTooLarge, ResourceExhausted
from fabric.frame import Kind, bare_frame
from fabric.rpc_fallback.bulk import Bulk
from fabric.rpc_fallback.config import host_of
from fabric.rpc_fallback.lane import LaneBroken
from fabric.rpc_fallback.lane_caller import LanePool
from fabric.rpc_fallback.pages import read_page
from fabric.rpc_fallback.pings import ping
from fabric.rpc_fallback.session import FAILURES, Session, left_s
from fabric.rpc_fallback.tls import caller_context
from fabric.rpc_fallback.waiting import discard, finished, ignore
from fabric.rpc_fallback.watching import Watching
from fabric.rpc_fallback.wire import BULK_BYTES, inline_answer, request_frame
from fabric.transport import WireName

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.frame import Load
    from fabric.load_page import Reading
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.rpc_fallback.config import RpcConfig
    from fabric.transport import Answer, Call, PeerFacts

BYE_S = 0.5
"""A port that does not answer a BYE finds out by itself that the caller is gone."""
CANCEL_S = 1.0


class RpcChannel:  # mutable: owns connections
    """A channel to the port at `address`. Replies from 64 KiB on land in `arena`, the caller's own, if it has one."""

    def __init__(
        self, address: str, client_id: int, config: RpcConfig, arena: Arena | None, expect: tuple[str, int] | None
    ) -> None:
        context = caller_context(config.tls) if config.tls is not None else None
        self._config = config
        self._arena = arena
        # No part refers back to the channel: it goes, and its arena with it, when its holder drops it.
        host = host_of(address)
        self._lanes = LanePool(host, client_id, config, context, arena)
        self._quick = LanePool(host, client_id, replace(config, lane_wait_s=0.0), context, arena)
        self._session = Session(address, client_id, config, expect, (self._lanes.renew, self._quick.renew))
        self._bulk = Bulk(self._session, self._lanes, arena)
        self._watching = Watching(self._session)
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._running = 0
        self._closing = False
        self._threads: ThreadPoolExecutor | None = None

    @classmethod
    def open(
        cls, address: str, client_id: int, deadline: Deadline, config: RpcConfig, arena: Arena | None = None,
        expect: tuple[str, int] | None = None, dialling: Dialling | None = None,
    ) -> Self:  # fmt: skip
        """Connects to the port at `address` (`host:port`). `expect` is the (node id, node epoch) that should be there;
        `dialling` may end the wait.

        Raises NodeLost when nobody answers, AccessDenied for a wrong token, StaleEpoch for another node or epoch,
        VersionMismatch, ConfigError for a wrong address or certificate file.
        """
        channel = cls(address, client_id, config, arena, expect)
        try:
            with (dialling or Dialling()).waiting(lambda: channel.abort(GIVEN_UP)):
                channel._session.open(deadline)
        except BaseException:  # whatever it was, nothing may stay open behind it
            channel.abort("the channel could not be opened")
            raise
        return channel

    @property
    def wire(self) -> WireName:
        """Always `rpc`."""
        return WireName.RPC

    @property
    def peer(self) -> PeerFacts:
        """What the port said of its node."""
        return self._session.peer

    @property
    def arena(self) -> Arena | None:
        """The caller's arena. Inputs need not lie in it: every memory is as good for sockets."""
        return self._arena

    @property
    def alive(self) -> bool:
        """False once the channel is closed or the connection was lost."""
        return not (self._session.lost or self._closing)

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits in the calling thread. Raises OverspillError."""
        self._enter()
        try:
            if max(call.body.layout.body_bytes, call.reply_bytes) < BULK_BYTES:
                answer = self._small(call, deadline)
                if answer is not None:
                    return answer
            return self._bulk.call(call, deadline)
        except ProtocolError as error:
            self.abort(str(error))
            raise
        except NodeLost:
            # The port lost its node: it tells each running call what it knows of it, so they are not cut off here.
            self._closing = True
            raise
        finally:
            self._leave()

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        """The same on the running loop. Cancelling it cancels the request, and returns when its memory is free."""
        self._enter()
        try:
            if max(call.body.layout.body_bytes, call.reply_bytes) < BULK_BYTES:
                answer = await self._inline_async(call, deadline)
                if answer is not None:
                    return answer
            return await self._bulk_async(call, deadline)
        except ProtocolError as error:
            self.abort(str(error))
            raise
        except NodeLost:
            # The port lost its node: it tells each running call what it knows of it, so they are not cut off here.
            self._closing = True
            raise
        finally:
            self._leave()

    def cancel(self, request: RequestId) -> None:
        """Asks the port for an early end of a running call; the call's own outcome still comes."""
        frame = bare_frame(Kind.CANCEL, request.client_id, request.request_no)
        with contextlib.suppress(*FAILURES):  # a lost channel has no running calls
            rpc = self._session.cancel.future(self._session.token + frame, timeout=CANCEL_S)
            rpc.add_done_callback(ignore)  # gRPC cancels a future that nobody holds

    async def ping(self, deadline: Deadline) -> Load:
        """Asks the node, through its port, for a sign of life. Raises OverspillError."""
        load = await ping(self._session, deadline)
        self._watching.renew()
        return load

    def watch(self, doubted: Callable[[], None]) -> None:
        """`doubted()` is called, from any thread, when a ping should be asked at once, and when the channel is over."""
        self._watching.begin(doubted)

    def read_page(self, deadline: Deadline) -> Reading:
        """What this client reads of the node's load page. Blocks. Raises Unavailable, DeadlineExceeded, NodeLost."""
        return read_page(self._session, deadline)

    def close(self, deadline: Deadline) -> None:
        """Takes no new call, waits for the running ones until the deadline, says BYE, then aborts."""
        with self._changed:
            self._closing = True
            while self._running and (remaining_s := deadline.remaining_s(time.monotonic())):
                self._changed.wait(remaining_s)
        if not self._session.lost:
            with contextlib.suppress(*FAILURES):
                last_s = max(0.05, min(BYE_S, deadline.remaining_s(time.monotonic())))
                self._session.bye(self._session.token + bare_frame(Kind.BYE), timeout=last_s)
        self.abort("the channel was closed; open another one")

    def abort(self, reason: str) -> None:
        """Ends at once: every running call raises `NodeLost` with this reason."""
        self._session.lose(reason)
        self._watching.close()
        self._lanes.close()
        self._quick.close()
        with self._changed:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown(wait=False)

    def _enter(self) -> None:
        with self._lock:
            if self._session.lost:
                raise NodeLost(self._session.lost, Fate.NEVER_RAN)
            if self._closing:
                raise NodeLost("the channel is closing, or its node was lost; open another one", Fate.NEVER_RAN)
            if self._running >= self._config.calls_max:
                raise ResourceExhausted(
                    f"{self._running} calls wait for this node already; try again later, or another"
                )
            self._running += 1

    def _leave(self) -> None:
        with self._lock:
            self._running -= 1
            if self._closing:
                self._changed.notify_all()

    def _message(self, token: bytes, call: Call, remaining_s: float) -> bytes:
        frame = request_frame(call, self._session.peer.node_epoch, int(remaining_s * 1e6))
        return b"".join((token, frame, call.body.view()))

    def _small(self, call: Call, deadline: Deadline) -> Answer | None:
        """On a lane that is free now, where a call takes a third of the time, else in one message of gRPC's."""
        frame = request_frame(call, self._session.peer.node_epoch, int(left_s(deadline) * 1e6))
        try:
            return self._quick.call(call.id, frame, call.body.view(), deadline)
        except LaneBroken as broken:
            sent = not broken.nothing_sent
        except OverspillError:
            raise
        except BaseException:  # a signal's handler raised in the middle of the wait: the node should know
            self.cancel(call.id)
            raise
        try:
            return self._inline(call, deadline)
        except OverspillError as error:
            if sent and error.fate is Fate.NEVER_RAN and not self.alive:
                error.fate = Fate.UNKNOWN  # the lane may have brought it to the node
            raise

    def _inline(self, call: Call, deadline: Deadline) -> Answer | None:
        """One message each way; None when the reply is too large for that."""
        session = self._session
        for last in (False, True):
            token, remaining_s = session.token, left_s(deadline)
            try:
                reply = session.call(self._message(token, call, remaining_s), timeout=remaining_s)
            except FAILURES as failure:
                if not last and session.renewed(failure, token, deadline):
                    continue
                raise session.error(failure) from None
            except OverspillError:
                raise
            except BaseException:  # a signal's handler raised in the middle of the wait: the node should know
                self.cancel(call.id)
                raise
            return self._small_answer(reply, call)
        raise AssertionError("the second pass returns or raises")

    async def _inline_async(self, call: Call, deadline: Deadline) -> Answer | None:
        session = self._session
        for last in (False, True):
            token, remaining_s = session.token, left_s(deadline)
            try:
                rpc = session.call.future(self._message(token, call, remaining_s), timeout=remaining_s)
                reply = await finished(rpc)
            except FAILURES as failure:
                if not last and await asyncio.to_thread(session.renewed, failure, token, deadline):
                    continue
                raise session.error(failure) from None
            return self._small_answer(reply, call)
        raise AssertionError("the second pass returns or raises")

    def _small_answer(self, reply: bytes, call: Call) -> Answer | None:
        try:
            return inline_answer(reply, call.id, self._arena)
        except ReplyTooLarge:
            return None

    async def _bulk_async(self, call: Call, deadline: Deadline) -> Answer:
        with self._changed:
            if self._session.lost:
                raise NodeLost(self._session.lost, Fate.NEVER_RAN)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._config.threads_max, thread_name_prefix="overspill-rpc")
            job = self._threads.submit(self._bulk.call, call, deadline)
        work = asyncio.wrap_future(job)
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            if not job.cancel():
                job.add_done_callback(discard)
                self._bulk.stop(call.id)
                self.cancel(call.id)
                # The thread still holds the call's memory: it lets go as soon as its socket is broken.
                with contextlib.suppress(OverspillError):
                    await work
            raise
