"""The caller's session with a port: the gRPC channel, what the port said of its node, and what a failure means.

A port may forget a session (its table is bounded); the session is then opened again, once per call, without the caller
noticing. A connection that was lost is not repaired: the channel is dead, and the link opens another. This module never
sends requests: `fabric/rpc_fallback/channel.py` and `fabric/rpc_fallback/bulk.py` do. Read `bulk.py` next.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING, TypeAlias

import grpc

from fabric.errors import (
    Cancelled,
    DeadlineExceeded,
    Fate,
    NodeLost,
    OverspillError,
    ProtocolError,
    StaleEpoch,
)
from fabric.frame import Kind, check_header, decode_error
from fabric.hello import Hello, Welcome, decode_welcome, encode_hello
from fabric.rpc_fallback.options import CALLER_OPTIONS
from fabric.rpc_fallback.status import error_of
from fabric.rpc_fallback.tls import caller_credentials
from fabric.rpc_fallback.wire import SESSION_BYTES, TOKEN_METADATA, Method
from fabric.transport import PeerFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.rpc_fallback.config import RpcConfig

Failure: TypeAlias = grpc.RpcError | grpc.FutureCancelledError | ValueError
FAILURES = (grpc.RpcError, grpc.FutureCancelledError, ValueError)
"""What gRPC's stubs raise: a status, a cancelled future, and ValueError on a channel that was closed."""


class Session:  # mutable: owns a gRPC channel, loses its session and gets another
    """One session. `token` goes in front of every message; `on_welcome` hears of each new one."""

    def __init__(
        self,
        address: str,
        client_id: int,
        config: RpcConfig,
        expect: tuple[str, int] | None,
        on_welcome: tuple[Callable[[Welcome], None], ...],
    ) -> None:
        self.address = address
        self.token = b""
        self.lost = ""
        self.client_id = client_id
        self._config = config
        self._expect = expect
        self._on_welcome = on_welcome
        self._lock = Lock()
        self._channel = grpc_channel(address, config)
        self.call = self._channel.unary_unary(Method.CALL)
        self.stream = self._channel.stream_stream(Method.STREAM)
        self.ping = self._channel.unary_unary(Method.PING)
        self.cancel = self._channel.unary_unary(Method.CANCEL)
        self.bye = self._channel.unary_unary(Method.BYE)
        self.page = self._channel.unary_unary(Method.PAGE)
        self._hello = self._channel.unary_unary(Method.HELLO)
        self._line = self._channel.unary_stream(Method.LINE)
        self._rdma = self._channel.unary_stream(Method.RDMA)
        self.peer = PeerFacts("", 0, 0)
        self.arena_bytes = 0

    def open(self, deadline: Deadline) -> None:
        """Says HELLO. Raises NodeLost, AccessDenied, StaleEpoch, VersionMismatch and what else the port answers."""
        remaining_s = deadline.remaining_s(time.monotonic())
        if not remaining_s:
            raise too_late(Fate.NEVER_RAN)
        hello = encode_hello(Hello(self.client_id, self._config.arena_bytes))
        try:
            frame = self._hello(hello, timeout=remaining_s, metadata=self._metadata())
        except FAILURES as failure:
            raise _never_ran(self.error(failure)) from None
        header = check_header(frame)
        if header.kind is Kind.ERROR:
            raise _never_ran(decode_error(frame, header).error)
        welcome = decode_welcome(frame, header)
        self._check(welcome)
        self.peer = PeerFacts(welcome.node_id, welcome.node_epoch, welcome.version)
        self.arena_bytes = welcome.arena_bytes
        for told in self._on_welcome:
            told(welcome)
        self.token = bytes.fromhex(welcome.session)

    def offer(self, message: bytes) -> grpc.Call:
        """Brings an offer of RDMA, and stays open; needs no session. Its only message is the answer."""
        return self._rdma(message, metadata=self._metadata())

    def hold(self) -> grpc.Call:
        """Opens the session's line: nothing is ever said on it, and it ends when the session or the connection does."""
        return self._line(self.token)

    def _metadata(self) -> tuple[tuple[str, str], ...] | None:
        return ((TOKEN_METADATA, f"Bearer {self._config.token}"),) if self._config.token else None

    def renewed(self, failure: Failure, used: bytes, deadline: Deadline) -> bool:
        """Whether the failure was a forgotten session, and there is a new one now. Raises what `open` raises."""
        if not isinstance(failure, grpc.RpcError) or failure.code() is not grpc.StatusCode.UNAUTHENTICATED:
            return False
        with self._lock:
            if self.token == used:
                self.open(deadline)
        return True

    def error(self, failure: Failure) -> OverspillError:
        """The error that a failure means; one that shows the connection to be lost ends the session."""
        if self.lost:
            return NodeLost(self.lost)
        if not isinstance(failure, grpc.RpcError):
            return Cancelled("the call was cancelled; send it again if it is still wanted")
        code, details = failure.code(), failure.details() or ""
        error = error_of(code, details)
        if isinstance(error, NodeLost):
            self.lose(str(error))
        return error

    def lose(self, reason: str) -> None:
        """Ends the session: gRPC ends every call that waits. Safe from any thread, twice too."""
        with self._lock:
            if self.lost:
                return
            self.lost = reason
        self._channel.close()

    def _check(self, welcome: Welcome) -> None:
        try:
            whole = len(bytes.fromhex(welcome.session)) == SESSION_BYTES
        except ValueError:
            whole = False
        if not whole:
            raise ProtocolError("the port's WELCOME has no session; what answers at this address is no port of ours")
        expect = self._expect or (self.peer.node_id and (self.peer.node_id, self.peer.node_epoch))
        if expect and expect != (welcome.node_id, welcome.node_epoch):
            raise StaleEpoch(
                f"{self.address} is node {welcome.node_id} in epoch {welcome.node_epoch} now, not {expect[0]} in"
                f" {expect[1]}; read the registry again",
                Fate.NEVER_RAN,
            )


def too_late(fate: Fate = Fate.UNKNOWN) -> DeadlineExceeded:
    """The error of a deadline that passed on our side."""
    return DeadlineExceeded(
        "the time given with the request is over; give it more, or ask a node that is less busy", fate
    )


def left_s(deadline: Deadline) -> float:
    """The seconds until then. Raises DeadlineExceeded when there are none."""
    remaining_s = deadline.remaining_s(time.monotonic())
    if not remaining_s:
        raise too_late(Fate.NEVER_RAN)
    return remaining_s


def grpc_channel(address: str, config: RpcConfig) -> grpc.Channel:
    """A channel to a port. Raises ConfigError for certificates that cannot be read."""
    if config.tls is None:
        return grpc.insecure_channel(address, CALLER_OPTIONS)
    options: tuple[tuple[str, int | str], ...] = CALLER_OPTIONS
    if config.tls.server_name:
        options = (*options, ("grpc.ssl_target_name_override", config.tls.server_name))
    return grpc.secure_channel(address, caller_credentials(config.tls), options)


def _never_ran(error: OverspillError) -> OverspillError:
    """It was not a request yet. No frame that the error's traceback holds may hold the error: hence a function."""
    error.fate = Fate.NEVER_RAN
    return error
