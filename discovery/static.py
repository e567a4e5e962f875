"""The registry `static:HOST:PORT,HOST:PORT`: nodes that an operator wrote down, for where nothing else is at hand.

A list of addresses knows nothing of the nodes behind them, and a registry has no wire to ask by. So a static instance
has its address as node id, epoch `ANY_EPOCH` (take whatever HELLO says) and no models, which means: any model may be
asked of it. What it really is, a link learns when it connects. The list never changes. This module never connects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from discovery.instance import Insert, Instance, Readiness
from fabric.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import Change

ANY_EPOCH = 0
"""The epoch of an instance whose life is unknown: a link accepts the one that HELLO says."""
RDMA_UNKNOWN = "?"
"""Whether a node of an operator's list offers rdma is found by asking it, where this host has a device."""


class StaticRegistry:
    """The fixed list `HOST:PORT,HOST:PORT`; an IPv6 host stands in brackets. Raises ConfigError for anything else."""

    def __init__(self, addresses: str) -> None:
        found = [_checked(address.strip()) for address in addresses.split(",")]
        if len(set(found)) != len(found):
            raise ConfigError(f"static registry {addresses!r} names an address twice; name each node once")
        self._instances = tuple(
            Instance(
                node_id=address,
                node_epoch=ANY_EPOCH,
                host_id="",
                readiness=Readiness.READY,
                local="",
                rpc=address,
                rpc_tls=False,
                rdma=RDMA_UNKNOWN,
                devices=(),
                models=(),
            )
            for address in found
        )

    def read(self) -> tuple[Instance, ...]:
        """The instances of the list."""
        return self._instances

    def recall(self) -> None:
        """Nothing: the list itself is never away."""

    def watch(self, on_changes: Callable[[tuple[Change, ...]], None]) -> StaticWatch:
        """Calls back once, with the whole list; it never changes."""
        on_changes(tuple(Insert(instance) for instance in self._instances))
        return StaticWatch()

    def register(self, instance: Instance) -> StaticRegistration:
        """Does nothing: the operator's list already says where the nodes are."""
        return StaticRegistration(instance)

    def __repr__(self) -> str:
        return f"<StaticRegistry of {len(self._instances)}>"


class StaticWatch:
    """A watch of what cannot change."""

    def age_s(self) -> float:
        """Always 0: the list is never out of date."""
        return 0.0

    def trouble(self) -> str:
        """Never any."""
        return ""

    def close(self) -> None:
        """Nothing to end."""


class StaticRegistration:
    """The entry of a node whose address the operator wrote down."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance

    def update(self, instance: Instance) -> None:
        """Nobody reads facts of a static node here; it tells them itself when a link connects."""
        assert instance.key == self._instance.key, "another life of a node needs a registration of its own"

    def close(self) -> None:
        """Nothing to take away."""


def _checked(address: str) -> str:
    host, _, port = address.rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not bare or (":" in bare) != (bare != host) or any(c.isspace() or c == "/" for c in bare):
        raise ConfigError(f"static registry address {address!r} has no host; give HOST:PORT, or [IPv6]:PORT")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ConfigError(f"static registry address {address!r} has no port between 1 and 65535; give HOST:PORT")
    return address
