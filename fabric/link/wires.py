"""How a link opens its wires: one small function for each, with everything it needs but the moment.

The libraries behind a wire are imported when it is first opened. What the peer says must be the expected node id and
epoch, else it is not the peer. This module never decides which wire is used. Read `fabric/link/link.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from fabric.dialling import Dialling
from fabric.errors import ConfigError
from fabric.host import host_id
from fabric.link.config import LinkTimes
from fabric.rdma.config import RdmaConfig
from fabric.rpc_fallback.config import RpcConfig, TlsFiles
from fabric.settings import check_flag

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.memory.arena import Arena
    from fabric.rdma.engine import Engine
    from fabric.rdma.line import Line
    from fabric.transport import Channel

    Opener = Callable[[Deadline, tuple[str, int] | None], Channel]
    """Opens a channel to the expected (node id, epoch); None takes any. Blocks. Raises OverspillError."""

ANY_EPOCH = 0
"""The epoch of a peer whose life is not known before it answers."""


class Peer(Protocol):
    """What a link must know of a node; discovery's instances have it."""

    @property
    def node_id(self) -> str:
        """Its id; for an address that an operator wrote down, the address."""

    @property
    def node_epoch(self) -> int:
        """Its life, or `ANY_EPOCH`."""

    @property
    def host_id(self) -> str:
        """The boot id of its host, empty if unknown."""

    @property
    def local(self) -> str:
        """The path of its Unix socket, empty if it has none."""

    @property
    def rpc(self) -> str:
        """HOST:PORT, empty if it has none."""

    @property
    def rpc_tls(self) -> bool:
        """Whether that port speaks TLS."""

    @property
    def rdma(self) -> str:
        """The port that its queue pairs are made on, empty if it has none."""


@dataclass(frozen=True, slots=True)
class LinkConfig:
    """Settings of a link. `arena` is memory of the caller's own for large replies over rpc; an arena that a node lends
    is asked to be as large (None: the node's choice). `local`, `rdma` and `rpc` say which wires may carry requests (an
    offer of rdma goes to the node's rpc port all the same); `engine` has this process's RDMA device, and without it
    there is no rdma; `seed` spreads retries.
    """

    times: LinkTimes = field(default_factory=LinkTimes)
    arena: Arena | None = None
    rpc_config: RpcConfig = field(default_factory=RpcConfig)
    rdma_config: RdmaConfig = field(default_factory=RdmaConfig)
    local: bool = True
    rdma: bool = True
    rpc: bool = True
    engine: Engine | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name, kind in (("times", LinkTimes), ("rpc_config", RpcConfig), ("rdma_config", RdmaConfig)):
            if not isinstance(getattr(self, name), kind):
                raise ConfigError(f"{name} is {getattr(self, name)!r:.80}; give a value of {kind.__name__}")
        for name in ("local", "rdma", "rpc"):
            check_flag(name, getattr(self, name))
        if not (self.local or self.rdma or self.rpc):
            raise ConfigError("local, rdma and rpc are all off, so no wire may carry a request; allow one of them")

    def check_files(self) -> None:
        """Raises ConfigError for certificates that are missing or cannot be read, before any node is waited for."""
        if self.rpc_config.tls is not None:
            from fabric.rpc_fallback.certificates import caller_context

            caller_context(self.rpc_config.tls)


@dataclass(frozen=True, slots=True)
class Wires:
    """The openers of a link's two wires; None where there is none. `dialling` ends what they wait for."""

    preferred: Opener | None
    fallback: Opener | None
    dialling: Dialling = field(default_factory=Dialling)


def wires_to(peer: Peer, client_id: int, config: LinkConfig) -> Wires:
    """The wires that lead to `peer` from this host: local only if the peer says that it is here (its HELLO must prove
    it), rdma if it offers that over its rpc port, rpc if it has one."""
    preferred = fallback = None
    dialling = Dialling()
    arena_bytes = config.arena.nbytes if config.arena is not None else 0
    if config.local and peer.local and peer.host_id == host_id():
        preferred = _local(peer.local, client_id, arena_bytes)
    if peer.rpc:
        rpc = config.rpc_config
        if peer.rpc_tls and rpc.tls is None:
            rpc = replace(rpc, tls=TlsFiles())  # without an authority this fails, and its error says what to name
        rpc = replace(rpc, arena_bytes=rpc.arena_bytes or arena_bytes)
        if config.rpc:
            fallback = _rpc(peer.rpc, client_id, rpc, config.arena, dialling)
        if preferred is None and config.rdma and config.engine is not None and peer.rdma:
            preferred = _rdma(peer.rpc, client_id, rpc, config.engine, config.arena, dialling)
    return Wires(preferred, fallback, dialling)


def _local(path: str, client_id: int, arena_bytes: int) -> Opener:
    def open_it(deadline: Deadline, expect: tuple[str, int] | None) -> Channel:
        from fabric.local.channel import LocalChannel

        return LocalChannel.open(path, client_id, deadline, arena_bytes=arena_bytes, expect=expect)

    return open_it


def _rpc(address: str, client_id: int, config: RpcConfig, arena: Arena | None, dialling: Dialling) -> Opener:
    def open_it(deadline: Deadline, expect: tuple[str, int] | None) -> Channel:
        from fabric.rpc_fallback.channel import RpcChannel

        return RpcChannel.open(address, client_id, deadline, config, arena, expect, dialling)

    return open_it


def _rdma(
    address: str, client_id: int, config: RpcConfig, engine: Engine, arena: Arena | None, dialling: Dialling
) -> Opener:
    def open_it(deadline: Deadline, expect: tuple[str, int] | None) -> Channel:
        from fabric.rdma.channel import RdmaChannel
        from fabric.rpc_fallback.bootstrap import bring_offer

        def bootstrap(offer: bytes, until: Deadline) -> tuple[bytes, Line]:
            return bring_offer(address, client_id, config, offer, until, dialling)

        return RdmaChannel.open(engine, bootstrap, client_id, deadline, expect, arena)

    return open_it
