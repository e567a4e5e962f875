"""One client's session at a node: its arena, its sockets, and what waits to be sent on each of them.

Sending never blocks the node: what the peer's queue does not take is kept, up to a bound, and while anything is kept
nothing more is read from that socket, so that a client that does not read its answers cannot pile up requests either.
This module never accepts connections and never reads requests: `fabric/local/listener.py` does both. Read that next.
"""

from __future__ import annotations

import select
import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from fabric.local.sockets import send_now

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import Header, Load
    from fabric.local.reactor import Reactor
    from fabric.memory.arena import Arena


class Tenant:  # mutable: sockets come and go
    """One session. `tenant_no` is its number at this node, never reused; `client_id` what its HELLO said."""

    __slots__ = ("arena", "client_id", "closed", "session", "sockets", "tenant_no", "uid")

    def __init__(self, tenant_no: int, client_id: int, session: str, uid: int, arena: Arena) -> None:
        self.tenant_no = tenant_no
        self.client_id = client_id
        self.session = session
        self.uid = uid
        self.arena = arena
        self.sockets: dict[int, TenantSocket] = {}
        self.closed = False

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<Tenant {self.tenant_no} {state} of client {self.client_id:016x}, {len(self.sockets)} sockets>"


class TenantHandler(Protocol):
    """What the listener calls, always in the reactor's thread. None of it may block.

    A method that raises OverspillError refuses what it was asked: the peer gets the error, and of a request the socket
    lives on, of anything else it is closed.
    """

    def tenant_opened(self, tenant: Tenant) -> None:
        """A session began; its arena is mapped."""

    def socket_opened(self, tenant: Tenant, socket: TenantSocket) -> None:
        """A socket joined the session; its peer is told after this returned."""

    def request(self, tenant: Tenant, socket: TenantSocket, header: Header, frame: bytes) -> None:
        """A REQUEST with a good header; its parts are not read yet."""

    def cancel(self, tenant: Tenant, socket: TenantSocket, request_no: int, client_id: int) -> None:
        """The caller gave a request up. Its final frame is still owed."""

    def load(self, tenant: Tenant) -> Load:
        """What the node says of its load, for PONG and ERROR frames."""

    def socket_closed(self, tenant: Tenant, socket: TenantSocket) -> None:
        """A socket left the session: frames for it have nowhere to go."""

    def tenant_closed(self, tenant: Tenant) -> None:
        """The last socket left. The arena stays mapped as long as the handler keeps the tenant."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How much may wait on one socket for a peer that does not read."""

    frames_max: int = 1024
    bytes_max: int = 4 << 20


QUEUE_BOUNDS = QueueBounds()


class TenantSocket:  # mutable: owns a socket and the frames that wait for it
    """One socket of a tenant. `socket_no` is its number at this node, never reused."""

    __slots__ = (
        "_bounds",
        "_drop",
        "_dropped",
        "_queue",
        "_queued_bytes",
        "_reactor",
        "closed",
        "sock",
        "socket_no",
        "tenant",
    )

    def __init__(
        self,
        socket_no: int,
        tenant: Tenant,
        sock: socket.socket,
        reactor: Reactor,
        bounds: QueueBounds,
        drop: Callable[[TenantSocket], None],
    ) -> None:
        self.socket_no = socket_no
        self.tenant = tenant
        self.sock = sock
        self.closed = False
        self._reactor = reactor
        self._bounds = bounds
        self._drop = drop
        self._dropped = False
        self._queue: deque[bytes | bytearray] = deque()
        self._queued_bytes = 0

    def fileno(self) -> int:
        """The descriptor, to be duplicated for an executor; -1 once closed."""
        return self.sock.fileno()

    @property
    def queued_frames(self) -> int:
        """Frames that wait because the peer does not read."""
        return len(self._queue)

    def send(self, frame: bytes | bytearray) -> None:
        """Sends now, or keeps the frame until the peer reads. Never blocks and never raises: a peer that is gone, or
        lets more wait than the bounds allow, is dropped."""
        if self.closed or self._dropped:
            return
        if not self._queue:
            try:
                if send_now(self.sock, frame):
                    return
            except OSError:
                return  # the peer is gone: its end of stream is about to be read, which tells the handler in order
            self._reactor.modify(self.fileno(), select.EPOLLOUT)
        self._queue.append(frame)
        self._queued_bytes += len(frame)
        if len(self._queue) > self._bounds.frames_max or self._queued_bytes > self._bounds.bytes_max:
            self._dropped = True
            self._queue.clear()
            self._drop(self)

    def flush(self) -> None:
        """Sends what waits, as far as the peer takes it, and reads again once nothing waits."""
        while self._queue:
            try:
                if not send_now(self.sock, self._queue[0]):
                    return
            except OSError:
                self._queue.clear()  # gone: reading will find the end of the stream
                break
            self._queued_bytes -= len(self._queue.popleft())
        self._queued_bytes = 0
        self._reactor.modify(self.fileno(), select.EPOLLIN)

    def shut(self) -> None:
        """Ends the connection for every process that has a duplicate of it, and closes ours."""
        self.closed = True
        self._queue.clear()
        self._reactor.remove(self.fileno())
        shut(self.sock)

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._queue)} queued"
        return f"<TenantSocket {self.socket_no} of tenant {self.tenant.tenant_no}, {state}>"


def shut(sock: socket.socket) -> None:
    """Shuts a connection down and closes it; executors hold duplicates, so closing alone would not end it."""
    with suppress(OSError):  # the peer may have closed it first
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()
