"""The port's end of offers of RDMA, each a call that stays open: it ends when the rdma port hangs up, and tells it when
the caller does.

Both ends of a pair of queue pairs so learn of the other one's death within milliseconds. A line costs a descriptor and
no thread. This module never reads an offer. Read `fabric/rpc_fallback/service.py` for who may make one.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    import grpc

    Offered = Callable[[bytes, grpc.ServicerContext], tuple[bytes, socket.socket | None]]
    """The answer to an offer, and the connection to the rdma port that brought it; None with a refusal."""
    Send = Callable[[bytes | None], None]
    """Sends a message to the caller; None ends the call."""


class Lines:  # mutable: lines come and go
    """The method `RdmaLine`, for a gRPC server; `attach` gives it the loop that watches over open lines."""

    experimental_non_blocking = True
    """gRPC calls us once and gives the thread back, as for its own health service (grpcio-health-checking)."""

    def __init__(self, offered: Offered) -> None:
        self._offered = offered
        self._loop: asyncio.AbstractEventLoop | None = None
        self._open: dict[socket.socket, Send] = {}
        self._changed = Condition()

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Lines are watched by this loop from now on."""
        self._loop = loop

    def __call__(self, message: bytes, context: grpc.ServicerContext, send: Send) -> None:
        """One call: the answer, and then nothing until either side is gone."""
        answer, line = self._offered(message, context)
        send(answer)
        loop = self._loop
        if line is None or loop is None:
            if line is not None:
                line.close()
            send(None)
            return
        line.settimeout(0)
        with self._changed:
            self._open[line] = send
        with suppress(RuntimeError):  # the loop has ended: so does the server
            loop.call_soon_threadsafe(self._watch, loop, line)
        if not context.add_callback(lambda: self._hang_up(line)):
            self._hang_up(line)

    def close(self, timeout_s: float) -> None:
        """Waits a while for the rdma port to hang up, then ends all lines."""
        with self._changed:
            self._changed.wait_for(lambda: not self._open, timeout_s)
            left = dict(self._open)
        for line, send in left.items():
            self._hang_up(line)
            send(None)

    def _watch(self, loop: asyncio.AbstractEventLoop, line: socket.socket) -> None:
        if line in self._open:
            loop.add_reader(line.fileno(), self._readable, line)

    def _readable(self, line: socket.socket) -> None:
        with suppress(BlockingIOError, OSError):
            if line.recv(1):
                return  # nothing is said on a line, and what is said means nothing
        send = self._open.get(line)
        self._hang_up(line)
        if send is not None:
            send(None)

    def _hang_up(self, line: socket.socket) -> None:
        with self._changed:
            if self._open.pop(line, None) is None:
                return
            self._changed.notify_all()
        loop = self._loop
        assert loop is not None, "there before any line was"
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_close, loop, line)
            return
        line.close()  # the loop has ended


def _close(loop: asyncio.AbstractEventLoop, line: socket.socket) -> None:
    if line.fileno() >= 0:
        loop.remove_reader(line.fileno())
        line.close()
