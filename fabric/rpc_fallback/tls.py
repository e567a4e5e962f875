"""Certificates of the rpc wire, read once and given to gRPC and to the lane alike: both are encrypted, or neither is.

This module never decides whether to encrypt: whoever configures the wire does. Read `fabric/rpc_fallback/wire.py` next.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import grpc

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from fabric.rpc_fallback.config import TlsFiles


def _read(path: Path | None, what: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be read ({error.strerror}); correct the tls settings") from None


def _needs(files: TlsFiles, *names: str) -> None:
    missing = [name for name in names if getattr(files, name) is None]
    if missing:
        raise ConfigError(f"tls needs {' and '.join(missing)}; name the PEM file")
    if (files.certificate is None) != (files.key is None):
        raise ConfigError("tls has a certificate without its key, or a key without its certificate; give both")


def server_credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """What gRPC's server needs. Raises ConfigError for files that are missing or no certificates."""
    server_context(files)  # ssl says what is wrong with a file; gRPC would only log it
    authority = _read(files.authority, "authority")
    pair = (_read(files.key, "key"), _read(files.certificate, "certificate"))
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def caller_credentials(files: TlsFiles) -> grpc.ChannelCredentials:
    """What gRPC's channel needs. Raises ConfigError for files that are missing or no certificates."""
    caller_context(files)
    return grpc.ssl_channel_credentials(
        _read(files.authority, "authority"), _read(files.key, "key"), _read(files.certificate, "certificate")
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """What the lane's server needs. Raises ConfigError."""
    _needs(files, "certificate", "key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if files.authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
    # A lane lives as long as its peer: nothing is gained by tickets for resuming it.
    context.num_tickets = 0
    return _loaded(context, files)


def caller_context(files: TlsFiles) -> ssl.SSLContext:
    """What the lane's caller needs; it checks the server's certificate and name. Raises ConfigError."""
    _needs(files, "authority")
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), files)


def _loaded(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if (authority := _read(files.authority, "authority")) is not None:
            context.load_verify_locations(cadata=authority.decode())
        if files.certificate is not None:
            _read(files.certificate, "certificate")  # ssl would not say which of the two is missing
            _read(files.key, "key")
            context.load_cert_chain(files.certificate, files.key)
    except (OSError, ValueError):  # ssl.SSLError is an OSError, and tells lines of its own source
        named = ", ".join(str(path) for path in (files.authority, files.certificate, files.key) if path is not None)
        raise ConfigError(
            f"the tls files {named} hold no PEM, or do not belong together; correct the tls settings"
        ) from None
    return context
