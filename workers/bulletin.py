"""What a node tells its operator: a line for each state with addresses and models, and a warning for what looks wrong.

The lines are for people and for tests of the whole; other programs read the registry. This module decides nothing about
readiness. Read `workers/node.py` next.
"""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from discovery.instance import Readiness
from discovery.static import StaticRegistry
from workers.inject import read_injections

if TYPE_CHECKING:
    from discovery.instance import Instance
    from workers.repository import ModelEntry

_log = logging.getLogger(__name__)
STATIC = "static:"
NAMES_MAX = 20
"""Models that the ready line names; `overspill models` lists all."""


def warn_at_start(
    entries: tuple[ModelEntry, ...], registry: str, inject: str = "", rpc_port: int | None = None
) -> None:
    """Tells what the configurations hold that has no effect, which models are refused, that the node is entered in no
    registry, and of an injection for a model that is not there. `rpc_port` is None without that wire."""
    if not registry:
        _log.warning(
            "no registry is given, so no caller can find this node by discovery; say --registry dir:PATH or consul:URL,"
            " or have callers connect to static:HOST:PORT"
        )
    elif registry.startswith(STATIC):
        _log.warning("%s", static_warning(registry, rpc_port))
    for name in sorted({each.model for each in read_injections(inject)} - {"", *(entry.name for entry in entries)}):
        _log.warning("inject names model %r, which is not there: nothing breaks; correct the name", name)
    for entry in entries:
        for warning in entry.config.warnings if entry.config else ():
            _log.warning("%s", warning)
        if entry.refused:
            _log.warning("model %s is refused: %s", entry.name, entry.refused)


def static_warning(registry: str, rpc_port: int | None) -> str:
    """What a list of addresses means for a node that was given one: it is entered nowhere, and may not be on it."""
    ports = {instance.rpc.rpartition(":")[2] for instance in StaticRegistry(registry.removeprefix(STATIC)).read()}
    nowhere = f"{registry} is a list that no node is entered in"
    if rpc_port is None:
        return f"{nowhere}, and its callers come over rpc, which this node does not offer; add rpc to --wires"
    if str(rpc_port) not in ports:
        port = f"port {rpc_port}" if rpc_port else "any free port"
        return (
            f"{nowhere}, and this node listens on {port}, which no address of it has; say --listen with the HOST:PORT"
            " by which the list names this node, or give dir:PATH or consul:URL"
        )
    return f"{nowhere}: callers find this node only by a list of their own with its address"


def state_line(instance: Instance) -> str:
    """`node a is ready at /run/…/node.sock, 127.0.0.1:7071 and serves double, act`."""
    where = ", ".join(filter(None, (instance.local, instance.rpc))) or "no address yet"
    line = f"node {instance.node_id} is {instance.readiness.value} at {where}"
    served = [model.name for model in instance.models if not model.refused]
    if instance.readiness is not Readiness.READY:
        return line
    more = f" and {len(served) - NAMES_MAX} more" if len(served) > NAMES_MAX else ""
    return f"{line} and serves {', '.join(served[:NAMES_MAX])}{more}"


def public_host(host: str) -> str:
    """What others can connect to: an address that means all of ours is told by our name."""
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def tell_state(instance: Instance, front: tuple[int, int] = (0, 0)) -> None:
    """Logs the state, and the front door's ports when it is ready."""
    _log.info("%s", state_line(instance))
    if front[0] and instance.readiness is Readiness.READY:
        _log.info("front door of %s: gRPC on port %d, HTTP and metrics on port %d", instance.node_id, *front)


def tell_stopped(node_id: str) -> None:
    """Logs the last line of a node's life."""
    _log.info("node %s stopped", node_id)
