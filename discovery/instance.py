"""What discovery says of a node, as values: an instance, its models, and the two changes a watcher can report.

An instance is known by id *and* epoch: the same id with a new epoch is another life of the node, so it arrives as a
removal and an insertion. Facts are versioned and unknown ones are ignored, so that old and new nodes share a registry.
This module never reads a registry. Read `discovery/registry.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Readiness(Enum):
    """Whether a node takes work, by its own word."""

    STARTING = "starting"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class TensorFacts:
    """One declared input or output of a model; `dims` as in config.pbtxt, -1 where any size goes."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """One model that a node offers, or that takes no requests there, then `refused` says why.

    `state` is empty for one that simply serves; else `loading`, `reloading` (the old version serves meanwhile),
    `unloading`, `unloaded` or `refused`. `note` tells of one that serves why its last reload failed, or where on
    the node it does not fit."""

    name: str
    version: str
    idempotent: bool
    inputs: tuple[TensorFacts, ...]
    outputs: tuple[TensorFacts, ...]
    refused: str = ""
    state: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class CardFacts:
    """One GPU of a node: the maker's name of it, its memory, its UUID. `state` says why nothing runs on it, and is
    empty otherwise; `standby` is what stands beside its executor (`off`, `no room`, `context`, `full`), and
    `standby_bytes` what that held of its memory when it came."""

    model: str
    memory_bytes: int
    uuid: str = ""
    state: str = ""
    standby: str = "off"
    standby_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Instance:
    """One life of one node. Addresses are empty where the node does not offer that wire.

    `local` is the path of its Unix socket, meaningful on the host whose boot id is `host_id` only;
    `rpc` is HOST:PORT; `rpc_tls` says that the port speaks TLS; `rdma` names the port that queue pairs are made on, and
    is empty without that wire. `rack` is the operator's word for what is one switch away; `cards` are its GPUs.
    `rtt_prior_ms` is not the node's word but its reader's guess of the round trip there, 0 where there is none.
    """

    node_id: str
    node_epoch: int
    host_id: str
    readiness: Readiness
    local: str
    rpc: str
    rpc_tls: bool
    devices: tuple[str, ...]
    models: tuple[ModelFacts, ...]
    rdma: str = ""
    rack: str = ""
    cards: tuple[CardFacts, ...] = ()
    rtt_prior_ms: float = 0.0

    @property
    def key(self) -> tuple[str, int]:
        """What identifies this life of the node."""
        return self.node_id, self.node_epoch


@dataclass(frozen=True, slots=True)
class Insert:
    """An instance is there, or its facts changed."""

    instance: Instance


@dataclass(frozen=True, slots=True)
class Remove:
    """The registry no longer knows this life of the node. A healthy link to it may go on until it drains."""

    node_id: str
    node_epoch: int


Change = Insert | Remove
