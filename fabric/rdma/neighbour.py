"""Finds the way to a peer's address before a queue pair is connected to it.

The kernel would do it within the connecting call, which can take a second and more, and pyverbs holds the interpreter's
lock meanwhile. A TCP connection to the same address, from ours, has the same neighbour resolved; that nobody listens
there is an answer too. This module never sends a byte. Read `fabric/rdma/channel.py` next.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from contextlib import suppress
from pathlib import Path

from fabric.errors import Fate, NodeLost

_PORT = 4791
"""RoCE's own port number, where nobody listens on TCP."""
_COMPLETE = 0x02
"""ATF_COM of net/if_arp.h."""
_ANSWERS = frozenset({0, errno.ECONNREFUSED, errno.EISCONN, errno.ECONNRESET})


def find_neighbour(address: str, own: str, timeout_s: float) -> None:
    """Returns once `address` answered, from our address `own`. Raises NodeLost (never ran) when it did not in time.
    Does nothing where there are no addresses, as on InfiniBand."""
    if not address or address == own:
        return
    with _socket(own) as sock:
        sock.settimeout(timeout_s)
        try:
            code = sock.connect_ex(_place(address, _PORT))
        except TimeoutError:
            code = errno.ETIMEDOUT
    _judge(address, own, code)


async def find_neighbour_async(address: str, own: str, timeout_s: float) -> None:
    """The same, awaited."""
    if not address or address == own:
        return
    code = 0
    with _socket(own) as sock:
        sock.settimeout(0)
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.get_running_loop().sock_connect(sock, _place(address, _PORT))
        except TimeoutError:
            code = errno.ETIMEDOUT
        except OSError as error:
            code = error.errno or errno.EIO
    _judge(address, own, code)


def is_resolved(address: str, table: Path = Path("/proc/net/arp")) -> bool:
    """Whether the kernel knows the way to an IPv4 neighbour, or has none by that address since it lies behind a router:
    a firewall may swallow the attempt, and a busy peer answer it late."""
    if ":" in address:
        return False  # the kernel has no such table for IPv6
    with suppress(OSError):
        for line in table.read_text(encoding="ascii").splitlines()[1:]:
            fields = line.split()
            if fields and fields[0] == address:
                return int(fields[2], 16) & _COMPLETE != 0
    return True


def _socket(own: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET)
    try:
        sock.bind(_place(own, 0))
    except OSError as error:
        sock.close()
        raise NodeLost(
            f"our RDMA address {own} cannot be used ({error.strerror}); look at it", Fate.NEVER_RAN
        ) from None
    return sock


def _place(address: str, port: int) -> tuple[str, int] | tuple[str, int, int, int]:
    """What a socket takes: of a link-local address it wants the network device behind the `%` as a number. Raises
    OSError for a device that is not there."""
    if "%" not in address:
        return address, port
    host, _, netdev = address.partition("%")
    return host, port, 0, socket.if_nametoindex(netdev)


def _judge(address: str, own: str, code: int) -> None:
    if code not in _ANSWERS and not (code == errno.ETIMEDOUT and is_resolved(address)):
        raise NodeLost(
            f"the RDMA address {address} does not answer from {own} ({errno.errorcode.get(code, code)}); look at the"
            " network between them, or name another device",
            Fate.NEVER_RAN,
        )
