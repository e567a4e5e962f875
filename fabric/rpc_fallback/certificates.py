"""Certificates of the rpc wire, read from their files once for each end, so that what is wrong with one is told.

Python's own ssl tells what gRPC would only log. This module needs no gRPC: whoever is about to use certificates may
look at them first. It never decides whether to encrypt. Read `fabric/rpc_fallback/tls.py` next.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from fabric.rpc_fallback.config import TlsFiles


def read_file(path: Path | str | None, what: str) -> bytes | None:
    """A PEM file's bytes, None for none. Raises ConfigError."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be read ({error.strerror}); correct the tls settings") from None


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


def _needs(files: TlsFiles, *names: str) -> None:
    missing = [name for name in names if getattr(files, name) is None]
    if missing:
        raise ConfigError(f"tls needs {' and '.join(missing)}; name the PEM file")
    if (files.certificate is None) != (files.key is None):
        raise ConfigError("tls has a certificate without its key, or a key without its certificate; give both")


def _loaded(context: ssl.SSLContext, files: TlsFiles) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        if (authority := read_file(files.authority, "authority")) is not None:
            context.load_verify_locations(cadata=authority.decode())
        if files.certificate is not None:
            read_file(files.certificate, "certificate")  # ssl would not say which of the two is missing
            read_file(files.key, "key")
            context.load_cert_chain(files.certificate, files.key)
    except (OSError, ValueError):  # ssl.SSLError is an OSError, and tells lines of its own source
        named = ", ".join(str(path) for path in (files.authority, files.certificate, files.key) if path is not None)
        raise ConfigError(
            f"the tls files {named} hold no PEM, or do not belong together; correct the tls settings"
        ) from None
    return context
