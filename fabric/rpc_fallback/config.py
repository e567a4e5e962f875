"""The settings of the rpc wire's two ends, each with its bound and where the number comes from.

Read `fabric/rpc_fallback/certificates.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from fabric.memory.arena import ARENA_BYTES_DEFAULT
from fabric.settings import BYTES_MOST, COUNT_MOST, DAY_S, check_number, check_whole

if TYPE_CHECKING:
    from pathlib import Path

_CALLER = (
    ("arena_bytes", 0, BYTES_MOST),
    ("lanes_max", 0, 64),  # sockets to one peer, twice
    ("threads_max", 1, 1024),
    ("calls_max", 1, COUNT_MOST),
)
TOKEN_CHARS_MAX = 1024
"""gRPC takes 8 KiB of metadata with a call, and refuses a call with more."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one end. A server needs `certificate` and `key`, and with `authority` asks callers for a certificate
    of that authority (mTLS). A caller needs `authority`, and `certificate` with `key` for mTLS."""

    authority: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    server_name: str = ""
    """Callers: the name that the server's certificate must have, where it is not the host of the address."""


@dataclass(frozen=True, slots=True)
class RpcConfig:
    """A caller's settings. `token` is the secret that the node's operator gave, empty where there is none."""

    tls: TlsFiles | None = None
    token: str = ""
    arena_bytes: int = 0
    """Memory that the port should hold for this caller; 0 leaves it to the port."""
    lanes_max: int = 4
    """Sockets for large bodies per peer, and as many for small ones: two saturate a 100 Gbit/s link, the others hide
    the work between them; whoever finds none free takes gRPC."""
    lane_wait_s: float = 0.005
    """How long a large call waits for a lane before it takes the stream: about what 4 MiB take on one."""
    lane_connect_s: float = 1.0
    threads_max: int = 8
    """Threads that carry large asynchronous calls."""
    calls_max: int = 1024
    """Calls on their way at the same time; more are refused at once."""

    def __post_init__(self) -> None:
        if self.tls is not None and not isinstance(self.tls, TlsFiles):
            raise ConfigError(f"tls is {self.tls!r:.80}; give a TlsFiles of fabric.rpc_fallback.config")
        check_token("token", self.token)
        for name, least, most in _CALLER:
            check_whole(name, getattr(self, name), least, most)
        check_number("lane_wait_s", self.lane_wait_s, 0.0, DAY_S)
        check_number("lane_connect_s", self.lane_connect_s, 0.0, DAY_S, above=True)


@dataclass(frozen=True, slots=True)
class RpcServerConfig:
    """A port's settings. `port` and `lane_port` 0 take any free one; callers must show `token` unless it is empty."""

    host: str = "127.0.0.1"
    port: int = 0
    lane_port: int = 0
    lanes: bool = True
    tls: TlsFiles | None = None
    token: str = ""
    threads_max: int = 32
    """Calls that wait for the node at the same time, lanes aside; a node queues behind it anyway."""
    calls_max: int = 1024
    """Calls in the port, waiting for a thread too; more are refused at once."""
    peers_max: int = 64
    peer_idle_s: float = 600.0
    """A caller that says nothing for ten minutes loses its arena; its next call opens another one."""
    arena_bytes: int = ARENA_BYTES_DEFAULT
    """What one caller gets when it does not say, `arena_bytes_max` at most."""
    arena_bytes_max: int = 4 << 30
    """The most that one caller gets."""
    lanes_per_peer: int = 16
    """Twice what a caller uses: one that broke there may not have ended here yet."""
    handshake_s: float = 3.0
    """A stranger on the lane's port has this long to show its token."""

    def __post_init__(self) -> None:
        if not (0 <= self.port < 65536 and 0 <= self.lane_port < 65536):
            raise ConfigError(f"port {self.port} or lane_port {self.lane_port} is no TCP port; give 0 to 65535")
        if min(self.threads_max, self.calls_max, self.peers_max, self.lanes_per_peer) < 1:
            raise ConfigError("threads_max, calls_max, peers_max and lanes_per_peer must be at least 1; correct them")

    @property
    def address(self) -> str:
        """Where to listen, as gRPC reads it."""
        return address_of(self.host, self.port)


def check_token(name: str, token: object) -> None:
    """Raises ConfigError unless `token` can travel in a call's metadata, which is printable ASCII."""
    sound = isinstance(token, str) and token.isascii() and token.isprintable() and token == token.strip()
    if not sound or len(str(token)) > TOKEN_CHARS_MAX:  # never shown: it is a secret
        raise ConfigError(
            f"{name} is no printable ASCII without blanks around it; give such a text, at most {TOKEN_CHARS_MAX} long"
        )


def address_of(host: str, port: int) -> str:
    """`host:port`, with the brackets that an IPv6 host needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(address: str) -> str:
    """The host of `host:port`. Raises ConfigError when the address is none."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65_536):
        raise ConfigError(f"{address!r} is no address of a node; give HOST:PORT, with a port from 1 to 65535")
    return host.removeprefix("[").removesuffix("]")
