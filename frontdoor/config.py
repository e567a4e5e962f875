"""How a front door is set up, as one value that both the node's process and the gateway fill in.

Nothing is read from files or the environment here. Read `frontdoor/serving.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import ConfigError

if TYPE_CHECKING:
    from fabric.rpc_fallback.config import TlsFiles

MESSAGE_BYTES_DEFAULT = 64 << 20
PORT_MAX = 65535
SHM_MODES = ("copy", "trust", "off")


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Settings of one front door. Raises ConfigError for what cannot work."""

    host: str = "127.0.0.1"
    port: int = 0
    """Of gRPC; 0 takes any free one."""
    http_port: int = 0
    """Of HTTP and the metrics page, on the same host; 0 takes the port after gRPC's, any free one where that is 0."""
    timeout_s: float = 300.0
    """For requests that bring no time of their own."""
    message_bytes_max: int = MESSAGE_BYTES_DEFAULT
    """What the tensors of one message may take; larger ones are refused before they are read."""
    shm: str = "copy"
    """Shared memory that clients registered: `copy` moves bytes by system calls, which no client can make fail for
    others; `trust` maps it, and takes clients of any host at their word; `off` refuses it."""
    shm_lease_s: float = 3.0
    """How long regions outlive the client that registered them; 0 for ever."""
    control: bool = False
    """Whether clients may load and unload models and change log settings."""
    grace_s: float = 2.0
    """What calls that are being answered may take at the end."""
    tls: TlsFiles | None = None
    traces: str = ""
    """Where traces go: a file, or the URL of a collector of OpenTelemetry; empty takes none."""

    def __post_init__(self) -> None:
        if self.shm not in SHM_MODES:
            raise ConfigError(f"shared memory of the front door is {self.shm!r}; say one of {', '.join(SHM_MODES)}")
        if not 0.0 < self.timeout_s <= 86_400.0 or self.shm_lease_s < 0 or self.message_bytes_max < 1:
            raise ConfigError("timeout, lease and message size of the front door must be above zero; correct them")
        if self.port == self.http_port != 0:
            raise ConfigError(f"gRPC and HTTP cannot both have port {self.port}; give another one for HTTP")
        if self.port == PORT_MAX and not self.http_port:
            raise ConfigError(f"HTTP takes the next port, and after {PORT_MAX} there is none; give one for HTTP")


def parse_address(text: str, setting: str) -> tuple[str, int]:
    """`[HOST:]PORT` as host and port; without a host the loopback one. Raises ConfigError."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise ConfigError(f"{setting} is {text!r}; give [HOST:]PORT, with port 0 for any free one")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)
