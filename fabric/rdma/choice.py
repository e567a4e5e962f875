"""Which device, port and address the rdma wire uses: pure logic over the facts of the host and the operator's wishes.

RoCE v2 goes first, an IPv4-mapped address before a global IPv6 one, a link-local one last; an active port always goes
before a port that is down. On InfiniBand the first address of a port is as good as any. Where nothing fits, the error
is one sentence that names what is missing and what to do. This module never opens a device. Read
`fabric/rdma/verbs.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import TYPE_CHECKING

from fabric.errors import ConfigError, Unavailable

if TYPE_CHECKING:
    from fabric.rdma.config import RdmaConfig
    from fabric.rdma.facts import DeviceFacts, GidFacts, Host, PortFacts

ROCE_V2 = "RoCE v2"
ETHERNET = "Ethernet"
ACTIVE = "ACTIVE"


@dataclass(frozen=True, slots=True)
class Choice:
    """A way out of this host. `address` is the IP address of a RoCE port, "" on InfiniBand; a link-local one ends with
    `%` and `netdev`, the network device that it means something on. `why` says it in words."""

    device: str
    port: int
    gid_index: int
    gid: str
    link_layer: str
    lid: int
    address: str
    why: str
    netdev: str = ""

    def address_of(self, gid: str) -> str:
        """The IP address of a peer's GID, as a socket of this host reaches it; empty on InfiniBand."""
        return scoped(ip_of(gid), self.netdev) if self.link_layer == ETHERNET else ""


def choose(host: Host, config: RdmaConfig, numa_node: int = -1) -> Choice:
    """The best way out, by the settings where they say something; `numa_node` is where the process runs, if known.

    Raises ConfigError when the operator named what is not there, Unavailable when the host has nothing that fits.
    """
    devices = [one for one in host.devices if config.device in {"", one.name}]
    if config.device and not devices:
        there = ", ".join(one.name for one in host.devices) or "none"
        raise ConfigError(f"there is no RDMA device {config.device!r} (there: {there}); correct the rdma device")
    if not devices:
        raise Unavailable(missing(host))
    ways = [
        (_rank(device, port, gid, numa_node), device, port, gid)
        for device in devices
        for port in device.ports
        for gid in port.gids
        if (not config.port or port.number == config.port) and _fits(port, gid, config)
    ]
    if not ways:
        raise Unavailable(_nothing_fits(devices, config))
    _, device, port, gid = min(ways, key=lambda way: way[0])
    if port.state != ACTIVE:
        raise Unavailable(
            f"port {port.number} of RDMA device {device.name} is {port.state or 'down'}; bring its network link up"
        )
    address = scoped(ip_of(gid.gid), gid.netdev) if port.link_layer == ETHERNET else ""
    why = f"{gid.kind or port.link_layer} {gid.gid}"
    return Choice(device.name, port.number, gid.index, gid.gid, port.link_layer, port.lid, address, why, gid.netdev)


def missing(host: Host) -> str:
    """Why a host without devices has none, in one sentence that says what to do."""
    if host.device_nodes and not host.usable:
        return "this user may not open /dev/infiniband/uverbs*; give read and write access, or run as a member of rdma"
    if host.device_nodes:
        return "no RDMA device is visible here though /dev/infiniband is; give the container the host's network"
    if host.rxe_module:
        return "no RDMA device is there; make a soft one: rdma link add rxe0 type rxe netdev ETH"
    return "no RDMA device is there; load a NIC's driver, or soft-RoCE: modprobe rdma_rxe"


def ip_of(gid: str) -> str:
    """The IP address that a RoCE GID is: dotted for an IPv4-mapped one."""
    address = IPv6Address(gid)
    return str(address.ipv4_mapped) if address.ipv4_mapped is not None else str(address)


def scoped(address: str, netdev: str) -> str:
    """An address for a socket: a link-local one means something on its network device only."""
    return f"{address}%{netdev}" if netdev and ":" in address and IPv6Address(address).is_link_local else address


def gid_text(gid: str) -> str:
    """The address as eight groups of four digits, which is what pyverbs reads. Raises ValueError for no address."""
    digits = IPv6Address(gid).packed.hex()  # since Python 3.13, `exploded` writes the last two groups as IPv4 does
    return ":".join(digits[at : at + 4] for at in range(0, 32, 4))


def _fits(port: PortFacts, gid: GidFacts, config: RdmaConfig) -> bool:
    if config.gid_index >= 0:
        return gid.index == config.gid_index
    # RoCE v1 frames are not routed, and its entry has the same address as the v2 one beside it.
    return port.link_layer != ETHERNET or gid.kind == ROCE_V2


def _rank(device: DeviceFacts, port: PortFacts, gid: GidFacts, numa_node: int) -> tuple[int, int, int, str, int, int]:
    far = int(numa_node >= 0 and device.numa_node >= 0 and device.numa_node != numa_node)
    return int(port.state != ACTIVE), _scope(gid.gid), far, device.name, port.number, gid.index


def _scope(gid: str) -> int:
    address = IPv6Address(gid)
    if address.ipv4_mapped is not None:
        return 0
    return 2 if address.is_link_local else 1


def _nothing_fits(devices: list[DeviceFacts], config: RdmaConfig) -> str:
    names = ", ".join(device.name for device in devices)
    if config.gid_index >= 0:
        return f"no port of {names} has the GID index {config.gid_index}; correct gid_index, or leave the choice to us"
    if config.port and not any(port.number == config.port for device in devices for port in device.ports):
        return f"{names} has no port {config.port}; correct the rdma port"
    kinds = sorted({gid.kind or "nameless" for device in devices for port in device.ports for gid in port.gids})
    if kinds:
        return f"{names} has {', '.join(kinds)} addresses only; give its network device an IP address, which makes v2"
    return f"{names} has no address; give its network device an IP address and bring it up"
