"""The network ports of one node, as one thing to start and stop: rpc, the front door, rdma.

A node without a usable RDMA device serves over rpc and says so; the rpc port, and the front door where one is asked
for, decide whether the node can be had at all. This module never speaks a wire: each port is a process of its own.
Read `workers/port_keeper.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.port_keeper import PortKeeper
from workers.port_settings import FrontSettings, PortSettings, RdmaPortSettings

if TYPE_CHECKING:
    from fabric.local.reactor import Reactor
    from workers.config import NodeConfig
    from workers.port_keeper import PortOwner


class Ports:  # mutable: owns processes
    """The ports that `config` asks for, of the node whose local socket is `socket`."""

    def __init__(
        self, reactor: Reactor, config: NodeConfig, socket: str, node_id: str, epoch: int, owner: PortOwner
    ) -> None:
        self._rpc: PortKeeper | None = None
        if "rpc" in config.wires:
            host, port = config.rpc_host_port
            rpc = PortSettings(
                host, port, config.rpc_token, config.tls_cert, config.tls_key, config.tls_ca, config.arena_bytes_max,
                socket, node_id, epoch, rdma="rdma" in config.wires,
            )  # fmt: skip
            self._rpc = PortKeeper(reactor, rpc, owner)
        self._front: PortKeeper | None = None
        if config.frontdoor:
            self._front = PortKeeper(reactor, _front(config, socket, node_id, epoch), owner)
        self._rdma: PortKeeper | None = None
        if "rdma" in config.wires:
            settings = RdmaPortSettings(
                socket, node_id, epoch, config.rdma_device, config.rdma_gid_index, config.rdma_ack_timeout,
                config.rdma_traffic_class, config.rdma_service_level, config.pinned_bytes_max,
            )  # fmt: skip
            self._rdma = PortKeeper(reactor, settings, owner)
        self._all = tuple(one for one in (self._rpc, self._rdma, self._front) if one is not None)

    @property
    def port(self) -> int:
        """The rpc port's number while it serves, else 0; not before the rdma port has said what it has, so that the
        first word of a node tells all its wires."""
        return self._rpc.port if self._rpc is not None and (self._rdma is None or self._rdma.answered) else 0

    @property
    def down(self) -> bool:
        """Whether one that must serve does not."""
        return (self._rpc is not None and not self.port) or (self._front is not None and not self._front.port)

    @property
    def front(self) -> tuple[int, int]:
        """The front door's ports for gRPC and HTTP; 0 and 0 while there is none."""
        return (self._front.port, self._front.http_port) if self._front is not None else (0, 0)

    @property
    def rdma(self) -> str:
        """What queue pairs are made on, such as mlx5_0/1; empty while there is nothing."""
        return self._rdma.name if self._rdma is not None else ""

    @property
    def rdma_missing(self) -> bool:
        """Whether rdma was asked for and there is none now, while rpc serves."""
        return self._rdma is not None and bool(self.port) and not self._rdma.name

    @property
    def gone(self) -> bool:
        """Whether there is no process left."""
        return all(one.gone for one in self._all)

    def start(self) -> None:
        """Starts all. Raises OSError when the system gives no process."""
        for one in self._all:
            one.start()

    def tell_ready(self, *, ready: bool) -> None:
        """What health services say of the node."""
        for one in (self._rpc, self._front):
            if one is not None:
                one.tell_ready(ready=ready)

    def tell_news(self) -> None:
        """Has the front door look what models there are, instead of waiting until it does."""
        if self._front is not None:
            self._front.tell_news()

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


def _front(config: NodeConfig, socket: str, node_id: str, epoch: int) -> FrontSettings:
    host, port, http_port = config.frontdoor_addresses
    return FrontSettings(
        host, port, http_port, config.tls_cert, config.tls_key, config.tls_ca, config.arena_bytes_max, socket, node_id,
        epoch, config.frontdoor_timeout_s, config.frontdoor_message_bytes_max, config.frontdoor_shm,
        config.frontdoor_shm_lease_s, control=config.model_control == "explicit", traces=config.frontdoor_traces,
    )  # fmt: skip
