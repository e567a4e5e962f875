"""The HTTP server of the front door: how many connections it has, how long they may be idle or deaf, its end.

A connection is a descriptor, and there are others who need some: gRPC's clients, regions, the node. So their number is
bounded, and whoever is one too many is told so at once. A client that takes no bytes any more is let go of by the
kernel. This module knows no address of the protocol. Read `frontdoor/http_service.py` next.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

if TYPE_CHECKING:
    import ssl

KEEPALIVE_S = 300.0
"""Idle HTTP connections stay open so long: a client's pool is then rarely surprised by a closed one."""
CONNECTIONS_MAX = 4096
BACKLOG = 1024
"""Connections that the kernel keeps until they are taken: a crowd comes at once, and a refused one waits a second."""
DESCRIPTORS_SHARE = 2
"""At most one of so many descriptors of the process is a connection of HTTP."""
DEAF_S = 60
"""What is sent waits so long to be taken, and a silent peer is asked then whether it lives (tcp(7))."""
_CROWDED = b'{"error": "too many connections are open here; close some, or try again later"}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_CROWDED), _CROWDED)
)


class HttpServer:  # mutable: open, then closed
    """Serves `application` with at most `connections_max` connections, as many as descriptors allow."""

    def __init__(self, application: web.Application, connections_max: int = CONNECTIONS_MAX) -> None:
        self._runner = web.AppRunner(
            application, handler_cancellation=True, access_log=None, keepalive_timeout=KEEPALIVE_S,
            auto_decompress=False,
        )  # fmt: skip
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = min(connections_max, max(1, soft // DESCRIPTORS_SHARE))
        self._listening: asyncio.Server | None = None

    async def start(self, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Takes connections of a socket that listens, and closes it at the end."""
        await self._runner.setup()
        let_go_of_deaf_clients(sock)
        self._listening = await asyncio.get_running_loop().create_server(
            self._protocol, sock=sock, ssl=tls, backlog=BACKLOG
        )

    def _protocol(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None, "it was set up"
        return server() if len(server.connections) < self._most else _TooMany()

    async def stop(self) -> None:
        """Takes no new connection, and closes the others when they have their answers."""
        if self._listening is not None:
            self._listening.close()
        await self._runner.cleanup()


class _TooMany(asyncio.Protocol):
    """Says that there are too many connections, and hangs up."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport), "a connection of TCP"
        transport.write(_REFUSAL)
        transport.close()


def let_go_of_deaf_clients(listening: socket.socket) -> None:
    """Has the kernel end connections of this socket whose client takes nothing, or is not there, for `DEAF_S`."""
    with suppress(OSError):  # a system without one of these has others, or waits longer
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, DEAF_S)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, DEAF_S // 6)
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAF_S * 1000)
