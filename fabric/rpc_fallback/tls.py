"""Certificates of the rpc wire as gRPC takes them; the lane takes the same: both are encrypted, or neither is.

This module never decides whether to encrypt: whoever configures the wire does. Read `fabric/rpc_fallback/wire.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from fabric.rpc_fallback.certificates import caller_context, read_file, server_context

if TYPE_CHECKING:
    from fabric.rpc_fallback.config import TlsFiles

__all__ = ("caller_context", "caller_credentials", "server_context", "server_credentials")


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What gRPC's server needs. Raises ConfigError for files that are missing or no certificates."""
    server_context(files)  # ssl says what is wrong with a file; gRPC would only log it
    authority = read_file(files.authority, "authority")
    pair = (read_file(files.key, "key"), read_file(files.certificate, "certificate"))
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def caller_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """What gRPC's channel needs. Raises ConfigError for files that are missing or no certificates."""
    caller_context(files)
    return grpc.ssl_channel_credentials(
        read_file(files.authority, "authority"),
        read_file(files.key, "key"),
        read_file(files.certificate, "certificate"),
    )
