"""The network ports of one node, as one thing to start and stop: rpc, and beside it rdma, which nothing depends on.

A node without a usable RDMA device serves over rpc and says so; the rpc port decides whether the node can be had at
all. This module never speaks a wire: each port is a process of its own. Read `workers/port_keeper.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.port_keeper import PortKeeper, PortSettings, RdmaPortSettings

if TYPE_CHECKING:
    from fabric.local.reactor import Reactor
    from workers.config import NodeConfig
    from workers.port_keeper import PortOwner


class Ports:  # mutable: owns processes
    """The ports that `config` asks for, of the node whose local socket is `socket`."""

    def __init__(
        self, reactor: Reactor, config: NodeConfig, socket: str, node_id: str, epoch: int, owner: PortOwner
    ) -> None:
        host, port = config.rpc_host_port
        self._rpc = PortKeeper(
            reactor,
            PortSettings(
                host, port, config.rpc_token, config.tls_cert, config.tls_key, config.tls_ca, config.arena_bytes_max,
                socket, node_id, epoch, rdma="rdma" in config.wires,
            ),
            owner,
        )  # fmt: skip
        self._rdma: PortKeeper | None = None
        if "rdma" in config.wires:
            settings = RdmaPortSettings(
                socket, node_id, epoch, config.rdma_device, config.rdma_gid_index, config.rdma_ack_timeout,
                config.rdma_traffic_class, config.rdma_service_level, config.pinned_bytes_max,
            )  # fmt: skip
            self._rdma = PortKeeper(reactor, settings, owner)
        self._all = tuple(one for one in (self._rpc, self._rdma) if one is not None)

    @property
    def port(self) -> int:
        """The rpc port's number while it serves, else 0; not before the rdma port has said what it has, so that the
        first word of a node tells all its wires."""
        return self._rpc.port if self._rdma is None or self._rdma.answered else 0

    @property
    def rdma(self) -> str:
        """What queue pairs are made on, such as mlx5_0/1; empty while there is nothing."""
        return self._rdma.name if self._rdma is not None else ""

    @property
    def gone(self) -> bool:
        """Whether there is no process left."""
        return all(one.gone for one in self._all)

    def start(self) -> None:
        """Starts all. Raises OSError when the system gives no process."""
        for one in self._all:
            one.start()

    def tell_ready(self, *, ready: bool) -> None:
        """What the rpc port's health service says of the node."""
        self._rpc.tell_ready(ready=ready)

    def drain(self) -> None:
        """New callers are refused."""
        for one in self._all:
            one.drain()

    def stop(self) -> None:
        """Asks all to end after the calls that they are answering."""
        for one in self._all:
            one.stop()

    def kill(self) -> None:
        """Ends them now."""
        for one in self._all:
            one.kill()
