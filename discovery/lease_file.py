"""The text of one lease: an instance, who owns it, and how long it lives without a heartbeat.

JSON, versioned: `format` is the writer's, `needs` the oldest reader that understands it. Unknown keys are ignored, so
that old and new nodes share a folder. Whatever does not parse raises, and its reader skips and counts it: one bad file
never poisons the list. The heartbeat is not in here but in the file's time stamp (`discovery/lease_folder.py`, next).
This module never touches a file.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote
from zlib import crc32

from discovery.facts import UNREADABLE, instance_facts, parse_instance, text
from discovery.owner import Owner
from fabric.errors import InvalidArgument, ProtocolError

if TYPE_CHECKING:
    from discovery.instance import Instance

FORMAT = 1
LEASE_BYTES_MAX = 1 << 20
"""A model with ten tensors takes about 1 KiB: room for a thousand of them."""
SUFFIX = ".lease"
_NAME_BYTES_MAX = 200
"""A file name has 255 bytes; the rest is for the suffix of the temporary name."""


@dataclass(frozen=True, slots=True)
class LeaseFile:
    """What one file says. After `ttl_s` without a heartbeat the instance counts as gone."""

    owner: Owner
    ttl_s: float
    instance: Instance


def file_name(node_id: str) -> str:
    """The one name of a node's lease: a new life of the node replaces the old one's file.

    Raises InvalidArgument for an id that is empty or takes over 200 bytes as a file name.
    """
    name = quote(node_id, safe="")
    if not 0 < len(name) <= _NAME_BYTES_MAX:
        raise InvalidArgument(
            f"node id {node_id[:40]!r} is empty or too long; give 1 to {_NAME_BYTES_MAX} letters and digits"
        )
    return name + SUFFIX


def encode_lease(lease: LeaseFile) -> bytes:
    """The lease as JSON. Raises InvalidArgument over 1 MiB."""
    facts = instance_facts(lease.instance)
    whole = {"format": FORMAT, "needs": 1, "ttl_s": lease.ttl_s, "owner": asdict(lease.owner), "instance": facts}
    raw = json.dumps({**whole, "sum": _sum_of(whole)}, indent=1).encode()
    if len(raw) > LEASE_BYTES_MAX:
        raise InvalidArgument(
            f"the facts of node {lease.instance.node_id!r} take {len(raw)} bytes, at most {LEASE_BYTES_MAX} are told;"
            " offer fewer models from this node"
        )
    return raw


def _sum_of(whole: dict[str, Any]) -> int:
    """A sum over what is told, so that a lease that was changed and still reads is not believed."""
    return crc32(json.dumps([whole["ttl_s"], whole["owner"], whole["instance"]], sort_keys=True).encode())


def parse_lease(raw: bytes) -> LeaseFile:
    """Reads a lease. Raises ProtocolError for anything but a whole lease that this version understands."""
    try:
        whole = json.loads(raw)
        if not 1 <= int(whole["needs"]) <= FORMAT:
            raise ProtocolError(
                f"a lease needs a reader of format {whole['needs']}, this is {FORMAT}; update this side"
            )
        told = _sum_of(whole)
        if whole.get("sum", told) != told:  # leases of earlier versions have none
            raise ValueError("it is not what its node wrote")
        owner = whole["owner"]
        lease = LeaseFile(
            Owner(text(owner["place"]), int(owner["pid"]), int(owner["started_ticks"])),
            float(whole["ttl_s"]),
            parse_instance(whole["instance"]),
        )
    except UNREADABLE as error:
        raise ProtocolError(f"a lease is cut or garbled ({type(error).__name__}: {error}); remove the file") from None
    if not 0 < lease.ttl_s < 86_400:
        raise ProtocolError(f"a lease lives {lease.ttl_s} s without a heartbeat; between 0 and a day make sense")
    return lease
