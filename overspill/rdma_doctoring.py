"""The RDMA part of `overspill doctor`: what of a machine keeps the rdma wire away, and the one command that mends it.

RDMA is optional: nothing here is `broken`, since every node can be reached over the rpc wire. What is looked at, and
what is said of it, are kept apart, so that each situation can be tried without the machine that has it. This module
changes nothing and opens no device. `overspill/doctoring.py` asks it.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import OverspillError
from fabric.rdma.choice import choose, missing
from fabric.rdma.config import RdmaConfig
from fabric.rdma.facts import DEVICE_NODES, read_host
from overspill.findings import Finding, Grade

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.rdma.facts import Host

UNLIMITED = -1
CAP_IPC_LOCK = 1 << 14
"""capabilities(7): CAP_IPC_LOCK is bit 14; who has it may pin memory beyond the limit."""
_CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


@dataclass(frozen=True, slots=True)
class Machine:
    """What the doctor looks at. `memlock_bytes` is the soft limit, -1 without one; `may_lock` says that the limit does
    not bind; `soft_module` that the kernel could load soft-RoCE; `netdev` is a network device for it; `pinned_bytes` is
    what a node would pin at most; `library` is why pyverbs cannot be used, empty if it can."""

    host: Host
    container: bool
    memlock_bytes: int
    may_lock: bool
    soft_module: bool
    netdev: str
    pinned_bytes: int
    library: str
    user: str
    node_group: str


def look() -> Machine:
    """The machine as it is."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        host=read_host(),
        container=any(mark.exists() for mark in _CONTAINER_MARKS) or _in_pod(),
        memlock_bytes=UNLIMITED if soft == resource.RLIM_INFINITY else soft,
        may_lock=bool(_capabilities() & CAP_IPC_LOCK),
        soft_module=_has_module("rdma_rxe"),
        netdev=_netdev(),
        pinned_bytes=memory_bytes // 4,
        library=_library_problem(),
        user=os.environ.get("USER") or str(os.getuid()),
        node_group=_node_group(),
    )


def rdma_findings(machine: Machine) -> Iterator[Finding]:
    """One sentence for each thing that stands in the way, or what will be used."""
    yield _device(machine)
    if machine.host.devices and machine.host.device_nodes and not machine.host.usable:
        yield _missing("rdma device node", _access(machine))
    if machine.library:
        yield _missing("pyverbs", machine.library)
    else:
        yield Finding(Grade.OK, "pyverbs", "loads, with this machine's libibverbs")
    yield _memlock(machine)


def _device(machine: Machine) -> Finding:
    host = machine.host
    if not host.devices:
        return _missing("rdma device", _no_device(machine) + "; until then remote nodes are reached over the rpc wire")
    if not host.device_nodes:
        if machine.container:
            mend = "start the container with --device /dev/infiniband"
        else:
            mend = "load the user part of the driver: modprobe ib_uverbs"
        names = ", ".join(device.name for device in host.devices)
        return _missing("rdma device", f"{names} is there, and /dev/infiniband/uverbs* is not; {mend}")
    try:
        choice = choose(host, RdmaConfig())
    except OverspillError as error:
        return _missing("rdma device", str(error))
    return Finding(
        Grade.OK, "rdma device", f"{choice.device} port {choice.port}, GID index {choice.gid_index} ({choice.why})"
    )


def _no_device(machine: Machine) -> str:
    host = machine.host
    if host.device_nodes and not machine.container:
        return missing(host)
    if machine.container:
        return "no RDMA device is visible in this container; start it with --network host --device /dev/infiniband"
    if host.rxe_module or machine.soft_module:
        load = "" if host.rxe_module else "modprobe rdma_rxe && "
        return (
            "no RDMA device is there, and this kernel has soft-RoCE; make one:"
            f" {load}rdma link add rxe0 type rxe netdev {machine.netdev or 'ETH'}"
        )
    return "no RDMA device is there, and this kernel has no soft-RoCE module; it takes an RDMA card and its driver"


def _access(machine: Machine) -> str:
    if machine.node_group not in {"", "root"}:
        mend = f"usermod -aG {machine.node_group} {machine.user}, then log in again"
    else:
        mend = "chmod 0666 /dev/infiniband/uverbs*, or the udev rules of the package rdma-core: apt install rdma-core"
    return f"{machine.user} may not open /dev/infiniband/uverbs*; {mend}"


def _memlock(machine: Machine) -> Finding:
    subject = "pinned memory"
    if machine.may_lock or machine.memlock_bytes == UNLIMITED:
        return Finding(Grade.OK, subject, f"no limit; a node pins {_size(machine.pinned_bytes)} for its peers at most")
    if machine.memlock_bytes >= machine.pinned_bytes:
        return Finding(
            Grade.OK,
            subject,
            f"limit {_size(machine.memlock_bytes)}, a node pins {_size(machine.pinned_bytes)} at most",
        )
    if machine.container:
        mend = "start the container with --cap-add IPC_LOCK, or with --ulimit memlock=-1"
    else:
        mend = "run `ulimit -l unlimited`, or set LimitMEMLOCK=infinity in the node's systemd unit"
    return _missing(
        subject,
        f"the limit is {_size(machine.memlock_bytes)}, and a node may pin {_size(machine.pinned_bytes)} for its peers;"
        f" {mend}, else peers beyond it stay on rpc",
    )


def _missing(subject: str, sentence: str) -> Finding:
    return Finding(Grade.MISSING, subject, sentence)


def _size(nbytes: int) -> str:
    return f"{nbytes >> 30} GiB" if nbytes >= 1 << 30 else f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes} B"


def _library_problem() -> str:
    from fabric.rdma.verbs import load

    try:
        load()
    except OverspillError as error:
        return str(error)
    return ""


def _capabilities() -> int:
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("CapEff:"):
                return int(line.split()[1], 16)
    return 0


def _in_pod() -> bool:
    """Whether the first process says that a container's engine started it, or Kubernetes told of itself."""
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return True
    with suppress(OSError):
        return b"container=" in Path("/proc/1/environ").read_bytes()
    return False


def _has_module(name: str) -> bool:
    with suppress(OSError):
        folder = Path("/lib/modules", os.uname().release)
        listed = (folder / "modules.dep").read_text(encoding="utf-8", errors="replace")
        return f"/{name}.ko" in listed
    return False


def _netdev() -> str:
    """A network device that could carry soft-RoCE: one with hardware behind it, else any but the loopback."""
    with suppress(OSError):
        there = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name != "lo")
        real = [name for name in there if Path("/sys/class/net", name, "device").exists()]
        return next(iter(real or there), "")
    return ""


def _node_group() -> str:
    import grp

    with suppress(OSError, KeyError):
        for path in sorted(DEVICE_NODES.glob("uverbs*")):
            return grp.getgrgid(path.stat().st_gid).gr_name
    return ""
