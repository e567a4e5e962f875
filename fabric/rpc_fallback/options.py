"""gRPC's own settings for both ends, each with its reason.

Read `fabric/rpc_fallback/server.py` and `fabric/rpc_fallback/channel.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from fabric.frame import FRAME_BYTES_MAX
from fabric.rpc_fallback.wire import BULK_BYTES, INLINE_REPLY_BYTES, PIECE_BYTES

Options = tuple[tuple[str, int], ...]

_STREAM_WINDOW = ("grpc.http2.lookahead_bytes", 4 << 20)
"""Four pieces on their way: gRPC begins with 64 KiB and grows it by probing, which small bodies pay for."""

SERVER_OPTIONS: Options = (
    # Another process must not share the port: calls would go to either.
    ("grpc.so_reuseport", 0),
    # The largest message that our callers send; anything larger is refused before it is read.
    ("grpc.max_receive_message_length", max(PIECE_BYTES, BULK_BYTES) + FRAME_BYTES_MAX + 1024),
    ("grpc.max_send_message_length", -1),
    # Callers may ask for a sign of life every few seconds, also while nothing runs.
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    _STREAM_WINDOW,
)

CALLER_OPTIONS: Options = (
    # Channels to one node from several routers of a process must not share a connection: `abort` ends one of them.
    ("grpc.use_local_subchannel_pool", 1),
    # Nodes are reached directly; a proxy of the environment is meant for the web.
    ("grpc.enable_http_proxy", 0),
    # Whether a request may be sent again is decided by its fate, not by gRPC.
    ("grpc.enable_retries", 0),
    ("grpc.service_config_disable_resolution", 1),
    ("grpc.max_receive_message_length", INLINE_REPLY_BYTES + FRAME_BYTES_MAX + 1024),
    ("grpc.max_send_message_length", -1),
    # A silent peer is found within 15 s even if nobody calls; the link's own probes are faster.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    _STREAM_WINDOW,
)
