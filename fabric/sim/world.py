"""A whole simulated world: one clock, one network, nodes by name, and channels to them.

    world = SimWorld(SimOptions(loss=0.1), seed=7)
    world.add_node("n1", {"echo": SimModel(0.001, echo)})
    channel = world.connect("n1", client_id=1, deadline=world.deadline(1.0))

With the default pump time is simulated and moves while somebody waits. This module never makes a choice of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import WeakSet

from fabric.deadline import Deadline
from fabric.errors import StaleEpoch, Unavailable
from fabric.memory.arena import Arena
from fabric.sim.channel import SimChannel
from fabric.sim.flights import Flights
from fabric.sim.network import SimNetwork, SimOptions
from fabric.sim.node import SimModel, SimNode
from fabric.sim.pump import Pump, VirtualPump
from fabric.sim.session import SimSession

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class SimWorld:  # mutable: nodes live and die in it
    """The world of one seed. Everything but `connect`, `deadline` and `close` belongs to the clock's thread: on a
    `RealPump`, use `pump.post`."""

    def __init__(self, options: SimOptions | None = None, seed: int = 0, pump: Pump | None = None) -> None:
        self.pump: Pump = pump or VirtualPump()
        self.network = SimNetwork(self.pump.clock, options or SimOptions(), seed)
        self.nodes: dict[str, SimNode] = {}
        self._channels: WeakSet[SimChannel] = WeakSet()  # whoever opened a channel keeps it, and its arena
        self._connections = 0

    def add_node(self, node_id: str, models: dict[str, SimModel], executors: int = 1) -> SimNode:
        """A new node, alive."""
        assert node_id not in self.nodes, "a node's id is its name in the network"
        node = self.nodes[node_id] = SimNode(self.network, node_id, models, executors)
        return node

    def deadline(self, timeout_s: float) -> Deadline:
        """A deadline by this world's clock."""
        return Deadline.after(timeout_s, self.pump.clock.now)

    def connect(
        self,
        node_id: str,
        client_id: int,
        deadline: Deadline,
        *,
        arena_bytes: int = 0,
        expect: tuple[str, int] | None = None,
        host: str = "client",
    ) -> SimChannel:
        """Opens a channel from `host`; with `arena_bytes`, large replies are written into an arena of that size.

        Raises Unavailable where nobody listens, StaleEpoch where the node is not the expected (id, epoch), and
        DeadlineExceeded where nobody answers.
        """
        node = self.nodes.get(node_id)
        if node is None or not node.alive:
            raise Unavailable(f"nobody listens at {node_id}; start it, or choose another node")
        self._connections += 1
        name = f"{host}#{self._connections}"
        arena = Arena.create(arena_bytes) if arena_bytes else None
        flights = Flights(self.network, name, host, node_id, client_id, arena)
        channel = SimChannel(self.pump, flights)
        session = SimSession(self.network, node, name, host, flights.receive, flights.lose, arena)
        self._channels.add(channel)
        channel.open(session, deadline)
        facts = channel.peer
        if expect is not None and (facts.node_id, facts.node_epoch) != expect:
            channel.abort("it was another life of the node")
            raise StaleEpoch(f"{node_id} is another life of the node than {expect}; ask discovery again")
        return channel

    def close(self) -> None:
        """Ends all channels and the pump. Safe twice."""
        for channel in list(self._channels):
            channel.abort("the simulated world was closed")
        self._channels.clear()
        self.pump.close()
        self.pump.clock.clear()
        self.nodes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
