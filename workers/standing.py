"""How a node stands by its own word: starting, ready, degraded or draining.

Only discovery hears of a wire that is missing: a load balancer that asks for the node's health wants to know whether it
serves, and over another wire it does. This module looks at nothing itself. Read `workers/node.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import NamedTuple

from discovery.instance import Readiness


class Condition(NamedTuple):
    """What a node has: executors that take work (one is ready when all its models are warm, so one is enough), a port
    that it was asked for and that is down, and any model that is not refused."""

    ready: int
    port_down: bool
    any_model: bool

    @property
    def serves(self) -> bool:
        """Whether requests are answered, over whatever wire."""
        return bool(self.ready) and self.any_model and not self.port_down


def readiness(condition: Condition, *, was_ready: bool, draining: bool, rdma_missing: bool = False) -> Readiness:
    """How a node is. `rdma_missing`: it was asked for, and there is none now."""
    if draining:
        return Readiness.DRAINING
    if not was_ready and (condition.port_down or not condition.ready):
        return Readiness.STARTING
    return Readiness.READY if condition.serves and not rdma_missing else Readiness.DEGRADED
