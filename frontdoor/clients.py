"""Who is at the other end of a connection from this host: which user, and which process.

Shared memory belongs to users, and a stock client proves nothing about itself. But the kernel knows whose socket it is:
`/proc/net/tcp` names the user of the client's end, and the process can be found by the socket's inode. A region is then
opened only if that user could have opened it, and is dropped when that process is gone. A client elsewhere can have no
memory here. This module never touches a region. Read `frontdoor/leases.py` next.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path

from fabric.errors import InvalidArgument

_ESTABLISHED = "01"  # TCP_ESTABLISHED of include/net/tcp_states.h
_OWNER_MAY = 0o600
_ANYBODY_MAY = 0o006

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Owner:
    """A client as the owner of regions. `uid` is None for one that is taken at its word (shared memory of any host);
    `process` is (pid, start time in clock ticks), or None where it could not be found; `connection` is its address."""

    space: str
    uid: int | None
    process: tuple[int, int] | None
    connection: Address

    def may_use(self, file_uid: int, mode: int) -> bool:
        """Whether this user could open a file of that owner and mode for reading and writing. Groups are left out:
        which ones a process had when it connected is not told."""
        if self.uid is None or self.uid == 0:
            return True
        if self.uid == file_uid:
            return mode & _OWNER_MAY == _OWNER_MAY
        return mode & _ANYBODY_MAY == _ANYBODY_MAY

    def same_client(self, other: Owner) -> bool:
        """Whether both are one process, or one connection where the process is not known."""
        if self.process is not None and other.process is not None:
            return self.process == other.process
        return self.connection == other.connection


@dataclass(frozen=True, slots=True)
class Socket:
    """One TCP socket of this host."""

    local: Address
    remote: Address
    uid: int
    inode: int


def parse_peer(peer: str) -> Address:
    """The address that gRPC (`ipv4:127.0.0.1:5000`, `ipv6:%5B::1%5D:5000`) or a URL tells. Raises InvalidArgument."""
    text = peer.removeprefix("ipv4:").removeprefix("ipv6:").replace("%5B", "[").replace("%5D", "]")
    host, _, port = text.rpartition(":")
    try:
        return _plain(host.removeprefix("[").removesuffix("]")), int(port)
    except ValueError:
        raise InvalidArgument("shared memory needs a client that connects over TCP; connect so") from None


def _plain(host: str) -> str:
    address = ip_address(host.partition("%")[0])
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    return str(address)


def read_sockets(proc: Path = Path("/proc")) -> tuple[Socket, ...]:
    """All established TCP sockets of this network namespace. Raises OSError, as when descriptors have run out: what
    cannot be seen is not gone."""
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # a kernel without IPv6 has no such table
            lines = (proc / "net" / table).read_text().splitlines()[1:]
            found += [socket for line in lines if (socket := _parse_line(line)) is not None]
    return tuple(found)


def _parse_line(line: str) -> Socket | None:
    words = line.split()
    if len(words) < 10 or words[3] != _ESTABLISHED:
        return None
    return Socket(_parse_address(words[1]), _parse_address(words[2]), int(words[7]), int(words[9]))


def _parse_address(text: str) -> Address:
    """`0100007F:1F90`: the address as words in the host's byte order, the port as a number."""
    host, _, port = text.partition(":")
    words = [int(host[at : at + 8], 16) for at in range(0, len(host), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    address = IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)
    return _plain(str(address)), int(port, 16)


def client_end(sockets: tuple[Socket, ...], client: Address, server_port: int) -> Socket | None:
    """The client's own socket of a connection to one of our ports."""
    return next((each for each in sockets if each.local == client and each.remote[1] == server_port), None)


def holder_of(inode: int, proc: Path = Path("/proc")) -> tuple[tuple[int, int], Path] | None:
    """The process that holds a socket, as (pid, start time), and the link that names the socket among its descriptors;
    None where it may not be seen."""
    wanted = f"socket:[{inode}]"
    for folder in proc.iterdir():
        if folder.name.isdigit():
            with suppress(OSError):  # not ours to look at, or gone
                link = next((each for each in (folder / "fd").iterdir() if str(each.readlink()) == wanted), None)
                if link is not None:
                    started = start_time(int(folder.name), proc)
                    return ((int(folder.name), started), link) if started is not None else None
    return None


def still_holds(link: Path, inode: int) -> bool:
    """Whether a link of `holder_of` names that socket still: its end is the end of what was known of the connection."""
    try:
        return str(link.readlink()) == f"socket:[{inode}]"
    except OSError:
        return False


def start_time(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process began, in clock ticks since boot; None when there is none of that number, or only its remains.
    Raises OSError when that cannot be seen."""
    try:
        # The name in brackets may hold anything, brackets and spaces too.
        words = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(words[19]) if words and words[0] not in {"Z", "X"} else None
