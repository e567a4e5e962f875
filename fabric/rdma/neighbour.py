"""Finds the way to a peer's address before a queue pair is connected to it.

The kernel would do it within the connecting call, which can take a second and more, and pyverbs holds the interpreter's
lock meanwhile. A TCP connection to the same address, from ours, has the same neighbour resolved; that nobody listens
there is an answer too. This module never sends a byte. Read `fabric/rdma/channel.py` next.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from fabric.errors import Fate, NodeLost

_PORT = 4791
"""RoCE's own port number, where nobody listens on TCP."""
_ANSWERS = frozenset({0, errno.ECONNREFUSED, errno.EISCONN, errno.ECONNRESET})


def find_neighbour(address: str, own: str, timeout_s: float) -> None:
    """Returns once `address` answered, from our address `own`. Raises NodeLost (never ran) when it did not in time.
    Does nothing where there are no addresses, as on InfiniBand."""
    if not address or address == own:
        return
    with _socket(own) as sock:
        sock.settimeout(timeout_s)
        try:
            code = sock.connect_ex((address, _PORT))
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
                await asyncio.get_running_loop().sock_connect(sock, (address, _PORT))
        except TimeoutError:
            code = errno.ETIMEDOUT
        except OSError as error:
            code = error.errno or errno.EIO
    _judge(address, own, code)


def _socket(own: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET)
    try:
        sock.bind((own, 0))
    except OSError as error:
        sock.close()
        raise NodeLost(
            f"our RDMA address {own} cannot be used ({error.strerror}); look at it", Fate.NEVER_RAN
        ) from None
    return sock


def _judge(address: str, own: str, code: int) -> None:
    if code not in _ANSWERS:
        raise NodeLost(
            f"the RDMA address {address} does not answer from {own} ({errno.errorcode.get(code, code)}); look at the"
            " network between them, or name another device",
            Fate.NEVER_RAN,
        )
