"""How a command that calls nodes gets to them where they ask for certificates or a token.

A token never stands on a command line, which other users of the host can read, but in a file. This module opens no
wire. Read `overspill/commands/call.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from fabric.rpc_fallback.config import RpcConfig, TlsFiles

if TYPE_CHECKING:
    from pathlib import Path


def rpc_config(
    options: str, authority: Path | None, certificate: Path | None, key: Path | None, token_file: Path | None,
    server_name: str = "",
) -> RpcConfig:  # fmt: skip
    """The rpc wire's settings; `options` is how the names of the options begin, such as `--tls`. Raises ConfigError for
    files that are missing or cannot be read."""
    if authority is None and (certificate or key or server_name):
        raise ConfigError(f"{options}-cert and {options}-key need {options}-ca; name the file of the nodes' authority")
    token = ""
    if token_file is not None:
        try:
            token = token_file.read_text().strip()
        except (OSError, UnicodeDecodeError):
            raise ConfigError(f"{token_file} cannot be read as text; give a file with the token") from None
    tls = TlsFiles(authority, certificate, key, server_name) if authority is not None else None
    return RpcConfig(tls=tls, token=token)
