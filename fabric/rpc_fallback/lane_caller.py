"""The caller's end of the lanes: a small pool per peer, opened when first needed, opened again with back-off.

A call that finds every lane busy waits a few milliseconds and then takes the stream, as does one whose lane broke. A
reply is received straight into a slot of the caller's arena. This module never falls back itself:
`fabric/rpc_fallback/channel.py` does. Read that next.
"""

from __future__ import annotations

import socket
import time
from threading import Condition
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import DeadlineExceeded, OverspillError, ProtocolError
from fabric.frame import Kind, bare_frame, check_header, decode_error
from fabric.hello import Hello, encode_hello
from fabric.message import SMALL_BODY_BYTES
from fabric.rpc_fallback.lane import Lane, LaneBroken, tune
from fabric.rpc_fallback.lane_tls import TlsSocket
from fabric.rpc_fallback.wire import answer_of, lease_or_none, read_reply

if TYPE_CHECKING:
    import ssl

    from fabric.frame import ReplyFrame
    from fabric.hello import Welcome
    from fabric.memory.arena import Arena
    from fabric.memory.lease import Lease
    from fabric.message import RequestId
    from fabric.rpc_fallback.config import RpcConfig
    from fabric.transport import Answer

BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 10.0
"""A lane that cannot be opened (a firewall that knows the gRPC port only) is tried six times a minute."""


class LanePool:  # mutable: owns sockets
    """The lanes to one peer. `renew` tells where they are and what token opens them."""

    def __init__(
        self, host: str, client_id: int, config: RpcConfig, context: ssl.SSLContext | None, arena: Arena | None
    ) -> None:
        self._host = host
        self._client_id = client_id
        self._config = config
        self._context = context
        self._arena = arena
        self._port = 0
        self._token = ""
        self._changed = Condition()
        self._idle: list[Lane] = []
        self._busy: dict[RequestId, Lane] = {}
        self._opening = 0
        self._open_from_s = 0.0
        self._backoff_s = BACKOFF_FIRST_S
        self._closed = False

    def renew(self, welcome: Welcome) -> None:
        """A new session: where the peer's lanes are, if it has any, and what token opens them."""
        with self._changed:
            self._port = welcome.lane_port if self._config.lanes_max else 0
            self._token = welcome.lane_token
            self._open_from_s, self._backoff_s = 0.0, BACKOFF_FIRST_S

    def call(self, request: RequestId, frame: bytes, body: memoryview, deadline: Deadline) -> Answer:
        """One call on a lane. Raises LaneBroken when there is none or it broke, or what the peer or time says."""
        healthy = sent = broke = False
        try:
            lane = self._take(request, deadline)
            lane.send(frame, body, deadline)
            sent = True
            answer = self._reply(lane, request, deadline)
            healthy = True
            return answer
        except LaneBroken as broken:
            # The port begins nothing before the body is whole.
            broke = request in self._busy
            raise LaneBroken(str(broken), nothing_sent=not sent) from None
        except (DeadlineExceeded, ProtocolError):
            # The time may have ended here or at the node: in the first case its answer still comes. Out of step either
            # way, and closing is the fence.
            raise
        except OverspillError:
            healthy = True  # the peer's own final frame: the lane is in step
            raise
        finally:
            self._put_back(request, healthy=healthy, broke=broke)

    def wake(self, request: RequestId) -> bool:
        """Breaks the lane of a running call, from any thread. Returns whether there was one."""
        lane = self._busy.get(request)
        if lane is None:
            return False
        lane.wake()
        return True

    def close(self) -> None:
        """Closes idle lanes and breaks the busy ones; their threads close them."""
        with self._changed:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = tuple(self._busy.values())
            self._changed.notify_all()
        for lane in idle:
            lane.close()
        for lane in busy:
            lane.wake()

    def _reply(self, lane: Lane, request: RequestId, deadline: Deadline) -> Answer:
        frame = lane.receive_frame(deadline)
        reply = read_reply(frame, check_header(frame), request)
        memory = self._body(lane, reply, deadline)
        if reply.body_bytes >= SMALL_BODY_BYTES:  # for smaller ones the next request on the lane is the receipt
            lane.send(bare_frame(Kind.DONE, request.client_id, request.request_no), b"", deadline)
        return answer_of(reply, memory, lane=True)

    def _body(self, lane: Lane, reply: ReplyFrame, deadline: Deadline) -> bytes | Lease:
        size = reply.body_bytes
        lease = lease_or_none(self._arena, size) if size >= SMALL_BODY_BYTES else None
        if lease is None:
            plain = bytearray(size)
            lane.receive_into(memoryview(plain), deadline)
            return bytes(plain)
        try:
            lane.receive_into(lease.view[:size], deadline)
        except BaseException:  # whatever ends the wait, the slot must return
            lease.release()  # this thread was the only writer
            raise
        return lease

    def _take(self, request: RequestId, deadline: Deadline) -> Lane:
        """A lane, entered as busy under the request's id, where `_put_back` finds it whatever happens."""
        now = time.monotonic()
        until_s = min(now + self._config.lane_wait_s, deadline.at_s)
        with self._changed:
            while True:
                while self._idle:
                    lane = self._busy[request] = self._idle.pop()
                    if not lane.stale():
                        return lane
                    del self._busy[request]
                    lane.close()
                taken = len(self._busy) + self._opening
                if self._closed or not self._port or (not taken and now < self._open_from_s):
                    raise LaneBroken("there is no lane now", nothing_sent=True)
                if taken < self._config.lanes_max and now >= self._open_from_s:
                    self._opening += 1
                    port, token = self._port, self._token
                    break
                if now >= until_s:
                    raise LaneBroken("every lane is busy", nothing_sent=True)
                self._changed.wait(until_s - now)
                now = time.monotonic()
        return self._connect(request, port, token, deadline)

    def _connect(self, request: RequestId, port: int, token: str, deadline: Deadline) -> Lane:
        limit = Deadline(time.monotonic() + self._config.lane_connect_s).earlier(deadline)
        lane: Lane | None = None
        entered = False
        try:
            lane = Lane(self._socket(port, limit))
            lane.send(encode_hello(Hello(self._client_id, session=token)), b"", limit)
            frame = lane.receive_frame(limit)
            header = check_header(frame)
            if header.kind is Kind.ERROR:
                raise decode_error(frame, header).error
            if header.kind is not Kind.WELCOME:
                raise ProtocolError("what listens there is no lane")
            self._busy[request] = lane
            entered = True
            return lane
        except (OSError, ValueError, LaneBroken, OverspillError) as error:
            self._back_off()
            raise LaneBroken(f"no lane could be opened ({error})", nothing_sent=True) from None
        finally:
            if lane is not None and not entered:
                lane.close()
            with self._changed:
                self._opening -= 1

    def _socket(self, port: int, limit: Deadline) -> socket.socket | TlsSocket:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            tune(sock)
            sock.settimeout(max(0.001, limit.remaining_s(time.monotonic())))
            sock.connect((self._host, port))
            if self._context is None:
                return sock
            name = (self._config.tls.server_name if self._config.tls else "") or self._host
            tls = TlsSocket(sock, self._context, name)
            tls.handshake(limit)
            return tls
        except BaseException:  # whatever it was, the socket must not stay open behind it
            sock.close()
            raise

    def _put_back(self, request: RequestId, *, healthy: bool, broke: bool) -> None:
        with self._changed:
            lane = self._busy.pop(request, None)
            keep = lane is not None and healthy and not self._closed
            if lane is not None and keep:
                self._idle.append(lane)
                self._backoff_s = BACKOFF_FIRST_S
            self._changed.notify()
        if lane is not None and not keep:
            lane.close()
        if broke:
            self._back_off()

    def _back_off(self) -> None:
        with self._changed:
            self._open_from_s = time.monotonic() + self._backoff_s
            self._backoff_s = min(self._backoff_s * 2, BACKOFF_MAX_S)
