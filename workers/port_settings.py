"""What the processes of a node's ports are told in their first line, and what they are.

This module starts nothing. Read `workers/port_keeper.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fabric.frame import VERSION

GRACE_S = 2.0
"""How long calls that are being answered may take when the port ends."""


@dataclass(frozen=True, slots=True)
class PortSettings:
    """What the port process is told."""

    host: str
    port: int
    token: str
    tls_cert: str
    tls_key: str
    tls_ca: str
    arena_bytes_max: int
    socket: str
    node_id: str
    node_epoch: int
    version: int = VERSION
    grace_s: float = GRACE_S
    parent_pid: int = 0
    ready: bool = False
    rdma: bool = False
    """Whether offers of RDMA have a port to go to."""


@dataclass(frozen=True, slots=True)
class RdmaPortSettings:
    """What the rdma port's process is told. `port` and `ready` mean nothing to it."""

    socket: str
    node_id: str
    node_epoch: int
    device: str
    gid_index: int
    ack_timeout: int
    traffic_class: int
    service_level: int
    pinned_bytes_max: int
    version: int = VERSION
    grace_s: float = GRACE_S
    parent_pid: int = 0
    port: int = 0
    ready: bool = False


@dataclass(frozen=True, slots=True)
class FrontSettings:
    """What the front door's process is told (`frontdoor/config.py` has the meanings)."""

    host: str
    port: int
    http_port: int
    tls_cert: str
    tls_key: str
    tls_ca: str
    arena_bytes_max: int
    socket: str
    node_id: str
    node_epoch: int
    timeout_s: float
    message_bytes_max: int
    shm: str
    shm_lease_s: float
    control: bool
    traces: str = ""
    grace_s: float = GRACE_S
    parent_pid: int = 0
    ready: bool = False


Settings = PortSettings | RdmaPortSettings | FrontSettings


class Program(NamedTuple):
    """What a port is called, the module that its process runs, and how many beats in a row, a second each, it may miss
    before it counts as standing still."""

    kind: str
    module: str
    missed_max: int


PROGRAMS: dict[type[Settings], Program] = {
    # Beside 16 busy processes on two cores the longest answer took under a second; a front door reads 8 MiB of JSON in
    # a third of one.
    PortSettings: Program("rpc port", "workers.port", 6),
    FrontSettings: Program("front door", "frontdoor.port", 6),
    # Registering memory holds the interpreter's lock: gigabytes take seconds.
    RdmaPortSettings: Program("rdma port", "workers.rdma_port", 15),
}
