"""Large bodies of a caller: a lane if there is one, gRPC's stream in pieces if not, the same id on both.

A lane that broke after the request was on it may have brought it to the node: the port then answers the repeated id
without running it again, and if the stream fails too, the fate is `unknown`. This module never opens lanes:
`fabric/rpc_fallback/lane_caller.py` does. Read `fabric/rpc_fallback/channel.py` next.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from fabric.errors import Cancelled, Fate, ResourceExhausted
from fabric.frame import check_header
from fabric.message import SMALL_BODY_BYTES
from fabric.rpc_fallback.lane import LaneBroken
from fabric.rpc_fallback.session import FAILURES, too_late
from fabric.rpc_fallback.wire import (
    PIECE_BYTES,
    answer_of,
    fill,
    lease_or_none,
    read_reply,
    request_frame,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.deadline import Deadline
    from fabric.memory.arena import Arena
    from fabric.memory.lease import Lease
    from fabric.message import RequestId
    from fabric.rpc_fallback.lane_caller import LanePool
    from fabric.rpc_fallback.session import Session
    from fabric.transport import Answer, Call


class Bulk:  # mutable: knows which large calls are running
    """Carries large calls over `lanes` and the session's stream; replies land in `arena` where there is one."""

    def __init__(self, session: Session, lanes: LanePool, arena: Arena | None) -> None:
        self._session = session
        self._lanes = lanes
        self._arena = arena
        self._lock = Lock()
        self._stops: dict[RequestId, Callable[[], object] | None] = {}
        self._stopped: set[RequestId] = set()

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """Sends one attempt and waits. Raises OverspillError."""
        size, room = call.body.layout.body_bytes, self._session.arena_bytes
        if room and size > room:
            raise ResourceExhausted(
                f"the inputs take {size} bytes and the node lends this caller {room}; split the request, or raise"
                " RouterConfig.arena_bytes and arena_bytes_max in the node's node.toml"
            )
        sent = False
        with self._lock:
            self._stops[call.id] = None
        try:
            frame = request_frame(call, self._session.peer.node_epoch, deadline.remaining_us(time.monotonic()))
            try:
                return self._lanes.call(call.id, frame, call.body.view(), deadline)
            except LaneBroken as broken:
                sent = not broken.nothing_sent
            return self._streamed(call, deadline, sent=sent)
        finally:
            with self._lock:
                self._stops.pop(call.id, None)
                self._stopped.discard(call.id)

    def stop(self, request: RequestId) -> None:
        """Ends a running call at once, from any thread: its lane or stream is broken, and its own thread returns."""
        with self._lock:
            if request not in self._stops:
                return
            self._stopped.add(request)
            stop = self._stops[request]
        self._lanes.wake(request)
        if stop is not None:
            stop()

    def _streamed(self, call: Call, deadline: Deadline, *, sent: bool) -> Answer:
        for last in (False, True):
            token = self._session.token
            try:
                return self._stream_once(call, token, deadline, sent=sent)
            except FAILURES as failure:
                if not last and self._session.renewed(failure, token, deadline):
                    continue
                error = self._session.error(failure)
                if sent:
                    error.fate = Fate.UNKNOWN
                raise error from None
        raise AssertionError("the second pass returns or raises")

    def _stream_once(self, call: Call, token: bytes, deadline: Deadline, *, sent: bool) -> Answer:
        remaining_s = deadline.remaining_s(time.monotonic())
        fate = Fate.UNKNOWN if sent else Fate.NEVER_RAN
        if not remaining_s:
            raise too_late(fate)
        frame = request_frame(call, self._session.peer.node_epoch, int(remaining_s * 1e6))
        rpc = self._session.stream(_pieces(token + frame, call.body.view()), timeout=remaining_s)
        with self._lock:
            self._stops[call.id] = rpc.cancel
            stopped = call.id in self._stopped
        try:
            if stopped:
                raise Cancelled("the call was given up; send it again if it is still wanted", fate)
            return self._receive(rpc, call.id)
        finally:
            rpc.cancel()  # does nothing to a stream that ended

    def _receive(self, rpc: Iterator[bytes], request: RequestId) -> Answer:
        frame = next(rpc, b"")
        reply = read_reply(frame, check_header(frame), request)
        size = reply.body_bytes
        lease = lease_or_none(self._arena, size) if size >= SMALL_BODY_BYTES else None
        try:
            memory: bytes | Lease
            if lease is None:
                plain = bytearray(size)
                fill(memoryview(plain), rpc)
                memory = bytes(plain)
            else:
                fill(lease.view[:size], rpc)
                memory = lease
        except BaseException:  # whatever ends the wait, the slot must return
            if lease is not None:
                lease.release()  # this thread was the only writer
            raise
        return answer_of(reply, memory, lane=False)


def _pieces(head: bytes, body: memoryview) -> Iterator[bytes]:
    yield head
    for at in range(0, len(body), PIECE_BYTES):
        yield bytes(body[at : at + PIECE_BYTES])
