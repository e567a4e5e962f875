"""What the kernel says of RDMA devices, ports and addresses, read from sysfs: no library is needed for it.

Nothing here is kept: a GID's index moves when an address is taken away and given back, so whoever connects looks again.
This module never opens a device and never chooses: `fabric/rdma/choice.py` does. Read that next.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SYSFS = Path("/sys/class/infiniband")
DEVICE_NODES = Path("/dev/infiniband")
EMPTY_MAX = 64
"""Empty or missing entries of a table in a row, after which none is looked for. The kernel fills the first free one, so
holes are what was deleted; soft-RoCE's table has 1,024 entries, whose reading took seconds on an emulated machine."""
_NO_GID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True, slots=True)
class GidFacts:
    """One entry of a port's table of addresses. `kind` is "RoCE v2", "IB/RoCE v1" or "" where the kernel names none;
    `netdev` is the network device that it belongs to."""

    index: int
    gid: str
    kind: str
    netdev: str = ""


@dataclass(frozen=True, slots=True)
class PortFacts:
    """One port. `state` is the kernel's word, such as ACTIVE; `link_layer` Ethernet or InfiniBand."""

    number: int
    state: str
    link_layer: str
    lid: int
    gids: tuple[GidFacts, ...]


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device. `numa_node` is -1 where it belongs to none."""

    name: str
    numa_node: int
    ports: tuple[PortFacts, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """What this host has. `device_nodes` says that /dev/infiniband is there, `usable` that this user may open it;
    `rxe_module` that the kernel has soft-RoCE loaded."""

    devices: tuple[DeviceFacts, ...]
    device_nodes: bool
    usable: bool
    rxe_module: bool


def read_host(sysfs: Path = SYSFS, nodes: Path = DEVICE_NODES, modules: Path = Path("/sys/module")) -> Host:
    """The facts as they are now. Never raises: what cannot be read is not there."""
    found = []
    with suppress(OSError):
        found = [_device(path) for path in sorted(sysfs.iterdir())]
    opened: list[Path] = []
    with suppress(OSError):
        opened = sorted(nodes.glob("uverbs*"))
    usable = any(os.access(path, os.R_OK | os.W_OK) for path in opened)
    return Host(tuple(found), bool(opened), usable, (modules / "rdma_rxe").exists())


def _device(path: Path) -> DeviceFacts:
    ports: list[PortFacts] = []
    with suppress(OSError):
        ports = [_port(each) for each in sorted((path / "ports").iterdir(), key=lambda port: int(port.name))]
    numa = _text(path / "device" / "numa_node")
    return DeviceFacts(path.name, int(numa) if numa.lstrip("-").isdecimal() else -1, tuple(ports))


def _port(path: Path) -> PortFacts:
    state = _text(path / "state").rpartition(":")[2].strip()  # "4: ACTIVE"
    lid = _text(path / "lid")
    number = int(lid, 16) if lid.startswith("0x") else 0
    return PortFacts(int(path.name), state, _text(path / "link_layer"), number, tuple(_gids(path)))


def _gids(path: Path) -> Iterator[GidFacts]:
    """The entries of a port's table, in order. Numbers are tried one after the other, since to list the table of
    soft-RoCE took far longer than to read what is in it."""
    table, attributes = f"{path}/gids", f"{path}/gid_attrs"
    index = empty = 0
    while empty < EMPTY_MAX:
        gid = _read(f"{table}/{index}")
        if gid and gid != _NO_GID:
            empty = 0
            yield GidFacts(index, gid, _read(f"{attributes}/types/{index}"), _read(f"{attributes}/ndevs/{index}"))
        else:
            empty += 1
        index += 1


def _text(path: Path) -> str:
    return _read(str(path))


def _read(path: str) -> str:
    """What a small file says; empty where it cannot be read. Plain calls, since a node looks every two seconds."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode("ascii", errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(fd)
