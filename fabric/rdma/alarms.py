"""What an event of a device or its port means for the connections on it.

Read `fabric/rdma/engine.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabric.rdma.facts import Host

_PORT_ENDS = frozenset({"PORT_ERR", "LID_CHANGE"})
_DEVICE_ENDS = frozenset({"DEVICE_FATAL", "CQ_ERR"})
"""A device that was reset or taken away, and a completion queue that overran: which one is not told, and none of its
completions can be trusted. What is open of the device serves nobody any more."""
GID_CHANGE = "GID_CHANGE"


def why_all_end(device: str, event: str) -> str:
    """Why every connection of the device ends with this event; empty where they live on."""
    if ends_the_device(event):
        return f"RDMA device {device} tells {event}; it is closed here, and opened again"
    return f"RDMA device {device} tells {event}; look at its network link" if event in _PORT_ENDS else ""


def ends_the_device(event: str) -> bool:
    """Whether nothing that is open of the device can be used after this event."""
    return event in _DEVICE_ENDS


def why_ends(device: str, gid: str, host: Host) -> str:
    """Why a connection with this address ends after the device's addresses have changed; empty while it is there."""
    there = {
        entry.gid for one in host.devices if one.name == device for port in one.ports for entry in port.gids
    }  # fmt: skip
    return "" if gid in there else f"the address {gid} of {device} is gone; give it back, or another"
