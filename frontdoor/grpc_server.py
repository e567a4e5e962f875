"""The gRPC server of the front door: its limits, its port, its end.

What a client may send is bounded before it is read. A client that pings often is not sent away: stock clients are told
to, by people with load balancers. This module knows no call. Read `frontdoor/serving.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from fabric.errors import AddressInUse, ConfigError
from fabric.rpc_fallback.lane_server import listen

if TYPE_CHECKING:
    from collections.abc import Sequence

STREAMS_MAX = 512
"""Calls that one connection may have open; further ones wait at the client (RFC 9113, 5.1.2)."""
CALLS_MAX = 16_384
"""Open calls of all connections, some 13 KiB each: a call may be open whose message never comes, and must not keep
others, health least of all, from being answered."""
KEEPALIVE_MS = 60_000
KEEPALIVE_TIMEOUT_MS = 20_000
HANDSHAKE_MS = 20_000
"""From the connection to HTTP/2's first frames, TLS included; gRPC itself would wait two minutes for silence."""
ENVELOPE_BYTES = 1 << 20
"""Room in a message for everything but the tensors."""


def options(message_bytes_max: int) -> list[tuple[str, int]]:
    """The server's settings; `message_bytes_max` is what the tensors of one message may take."""
    return [
        ("grpc.so_reuseport", 0),  # another process must not share the port: calls would go to either
        ("grpc.max_receive_message_length", message_bytes_max + ENVELOPE_BYTES),
        ("grpc.max_send_message_length", -1),  # what a model answers is not the client's choice
        ("grpc.max_concurrent_streams", STREAMS_MAX),
        # Or gRPC resets streams of a client that keeps to the limit, whenever ended ones are not yet cleared away.
        ("grpc.http.overload_protection", 0),
        # A crowd that comes at once waits until its calls are taken; gRPC would cancel some of over 1000, unasked.
        ("grpc.server.max_pending_requests", CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", CALLS_MAX),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        # A client that vanished (its machine lost power) holds streams and memory until it is asked whether it lives.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_MS),
        # gRPC begins with windows of 64 KiB and grows them by probing, which large tensors pay for.
        ("grpc.http2.lookahead_bytes", 4 << 20),
    ]


class GrpcServer:  # mutable: owns the server
    """A server on `host` and `port` (0: any free one). Raises AddressInUse or ConfigError."""

    def __init__(
        self, host: str, port: int, message_bytes_max: int, credentials: grpc.ServerCredentials | None = None
    ) -> None:
        self._server = grpc.aio.server(options=options(message_bytes_max), maximum_concurrent_rpcs=CALLS_MAX)
        # gRPC says only that it failed, and logs a page: a plain socket learns why.
        listen(host, port).close()
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if credentials is not None:
                self.port = int(self._server.add_secure_port(address, credentials))
            else:
                self.port = int(self._server.add_insecure_port(address))
        except RuntimeError:
            if port:
                raise AddressInUse(f"another process took {address} just now; stop it, or give another port") from None
            raise ConfigError(f"cannot listen on {address}; give an address of this machine") from None

    async def start(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """Begins to answer."""
        self._server.add_generic_rpc_handlers(tuple(handlers))
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Takes no new call, gives running ones `grace_s`, then ends them."""
        await self._server.stop(grace_s)
