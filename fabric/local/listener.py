"""The node's end of the local wire: accepts clients, greets them, and hands their checked frames to a handler.

Everything here is bounded: connections, sessions, sockets of a session, arena bytes, accepts per turn, the time a
stranger may stay silent, and what waits for a slow reader. A peer that sends what is no frame gets one ERROR that says
so and is closed; it can never harm another. The listener never reads an arena and never decides about requests: the
handler does. Read `workers/node.py` for the one handler, `fabric/local/channel.py` for the other end.
"""

from __future__ import annotations

import errno
import os
import secrets
import select
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from fabric.errors import AccessDenied, Fate, OverspillError, ProtocolError, ResourceExhausted
from fabric.frame import ErrorFrame, Header, Kind, Load, check_header, encode_error
from fabric.hello import Hello, Welcome, common_version, decode_hello, encode_pong, encode_welcome
from fabric.local.address import SocketAddress
from fabric.local.sockets import credentials, receive_now, send_now
from fabric.local.tenant import QUEUE_BOUNDS, QueueBounds, Tenant, TenantHandler, TenantSocket, shut
from fabric.memory.arena import ARENA_BYTES_DEFAULT, Arena

if TYPE_CHECKING:
    import socket

    from fabric.local.reactor import Reactor, Timer
    from fabric.transport import PeerFacts

_NO_LOAD: Final = Load(0, 0, 0, 0)
_GREETING_S: Final = 0.25
"""Time enough for a HELLO on a crowded machine: our own clients send it right after they connect."""
_PAUSE_S: Final = 0.1
"""How long accepting rests when the process is out of descriptors: the waiting peers stay in the backlog."""


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """What one node grants. An arena is address space until it is written; the sum is bounded all the same."""

    tenants_max: int = 256
    sockets_per_tenant_max: int = 256
    strangers_max: int = 128
    arena_bytes_default: int = ARENA_BYTES_DEFAULT
    arena_bytes_max: int = 4 << 30
    arenas_bytes_max: int = 1 << 40
    hello_timeout_s: float = 5.0
    accepts_per_turn: int = 16
    backlog: int = 128
    queue: QueueBounds = QUEUE_BOUNDS


class LocalListener:  # mutable: owns the listening socket and every session
    """Listens on `path` and serves until `close`. Raises AddressInUse or ConfigError when the path cannot be had."""

    def __init__(
        self, reactor: Reactor, path: str, facts: PeerFacts, handler: TenantHandler, limits: ListenerLimits
    ) -> None:
        self._reactor = reactor
        self._facts = facts
        self._handler = handler
        self._limits = limits
        self._tenants: dict[str, Tenant] = {}
        self._strangers: dict[int, tuple[socket.socket, Timer]] = {}
        self._numbers = 0
        self._uids = {os.getuid(), 0}
        self._address = SocketAddress(path, limits.backlog)
        self._accepting = True
        self._resume: Timer | None = None
        reactor.add(self._address.sock.fileno(), self._accept)

    @property
    def tenants(self) -> tuple[Tenant, ...]:
        """The open sessions."""
        return tuple(self._tenants.values())

    def stop_accepting(self) -> None:
        """Takes no new connection and gives the path free; open sessions go on."""
        if self._accepting:
            self._accepting = False
            if self._resume is not None:
                self._resume.cancel()
            self._reactor.remove(self._address.sock.fileno())
            self._address.release()

    def close(self) -> None:
        """Ends every session; the handler hears of each."""
        self.stop_accepting()
        for sock, timer in list(self._strangers.values()):
            self._forget_stranger(sock, timer)
            shut(sock)
        for tenant in self.tenants:
            self.drop(tenant)

    def drop(self, tenant: Tenant) -> None:
        """Ends one session."""
        for each in list(tenant.sockets.values()):
            self._close_socket(each)

    # Strangers: connections that have not said HELLO.

    def _accept(self, _events: int) -> None:
        for _ in range(self._limits.accepts_per_turn):
            try:
                sock, _ = self._address.sock.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    continue  # this peer went away while it waited
                self._reactor.remove(self._address.sock.fileno())
                self._resume = self._reactor.call_later(_PAUSE_S, self._accept_again)
                return
            self._meet(sock)

    def _accept_again(self) -> None:
        self._resume = None
        self._reactor.add(self._address.sock.fileno(), self._accept)

    def _meet(self, sock: socket.socket) -> None:
        sock.settimeout(0.0)
        if credentials(sock).uid not in self._uids:
            self._refuse(sock, AccessDenied("this node serves its own user only; run the client as that user"))
        elif len(self._strangers) >= self._limits.strangers_max and not self._make_room():
            self._refuse(sock, ResourceExhausted("too many connections wait to be greeted; try again a little later"))
        else:
            timer = self._reactor.call_later(self._limits.hello_timeout_s, partial(self._too_quiet, sock))
            self._strangers[sock.fileno()] = (sock, timer)
            self._reactor.add(sock.fileno(), partial(self._greet, sock, timer))

    def _make_room(self) -> bool:
        """Gives up on the stranger that has been silent longest: silent ones must not keep out those who speak."""
        sock, timer = next(iter(self._strangers.values()))
        if timer.at_s - self._reactor.now() > self._limits.hello_timeout_s - _GREETING_S:
            return False
        timer.cancel()
        self._too_quiet(sock)
        return True

    def _too_quiet(self, sock: socket.socket) -> None:
        self._strangers.pop(sock.fileno())
        self._reactor.remove(sock.fileno())
        self._refuse(sock, ProtocolError("no HELLO came in time; say it right after connecting"))

    def _forget_stranger(self, sock: socket.socket, timer: Timer) -> None:
        timer.cancel()
        self._strangers.pop(sock.fileno())
        self._reactor.remove(sock.fileno())

    def _refuse(self, sock: socket.socket, error: OverspillError) -> None:
        with suppress(OSError):  # it may have left before it heard why
            send_now(sock, encode_error(ErrorFrame(0, 0, self._facts.node_epoch, error, _NO_LOAD)))
        shut(sock)

    def _greet(self, sock: socket.socket, timer: Timer, _events: int) -> None:
        try:
            frame = receive_now(sock)
            if frame is None:
                return
            self._forget_stranger(sock, timer)
            if not frame:
                shut(sock)
                return
            self._join(sock, decode_hello(frame, check_header(frame)))
        except OverspillError as error:
            if sock.fileno() in self._strangers:
                self._forget_stranger(sock, timer)
            self._refuse(sock, error)
        except OSError:
            if sock.fileno() in self._strangers:
                self._forget_stranger(sock, timer)
            shut(sock)

    # Sessions.

    def _join(self, sock: socket.socket, hello: Hello) -> None:
        version = common_version(hello)
        tenant = self._session(hello) if hello.session else self._new_session(hello, credentials(sock).uid)
        fresh = not tenant.sockets
        self._numbers += 1
        joined = TenantSocket(self._numbers, tenant, sock, self._reactor, self._limits.queue, self._drop_slow)
        if fresh:
            self._handler.tenant_opened(tenant)
        try:
            self._handler.socket_opened(tenant, joined)
        except OverspillError:
            if fresh:
                self._handler.tenant_closed(tenant)
            raise
        tenant.sockets[joined.socket_no] = joined
        self._tenants[tenant.session] = tenant
        self._reactor.add(sock.fileno(), partial(self._ready, joined))
        facts, limits = self._facts, self._limits
        words = (facts.node_id, facts.node_epoch, version, tenant.session, tenant.arena.nbytes)
        frame = encode_welcome(Welcome(*words, limits.sockets_per_tenant_max), tenant.client_id)
        try:
            send_now(sock, frame, (tenant.arena.fd,) if fresh else ())
        except OSError:
            self._close_socket(joined)

    def _session(self, hello: Hello) -> Tenant:
        tenant = self._tenants.get(hello.session)
        if tenant is None or tenant.client_id != hello.client_id:
            raise AccessDenied("the session is not known here or is another client's; open a new one")
        if len(tenant.sockets) >= self._limits.sockets_per_tenant_max:
            raise ResourceExhausted(f"the session has its {len(tenant.sockets)} sockets already; use them in turn")
        return tenant

    def _new_session(self, hello: Hello, uid: int) -> Tenant:
        limits = self._limits
        if len(self._tenants) >= limits.tenants_max:
            raise ResourceExhausted(f"the node has its {limits.tenants_max} clients already; use another node")
        wanted = min(hello.arena_bytes or limits.arena_bytes_default, limits.arena_bytes_max)
        lent = sum(tenant.arena.nbytes for tenant in self._tenants.values())
        if lent + wanted > limits.arenas_bytes_max:
            raise ResourceExhausted(f"the node has lent {lent} bytes of arenas already; use another node")
        self._numbers += 1
        return Tenant(self._numbers, hello.client_id, secrets.token_hex(16), uid, Arena.create(wanted))

    def _close_socket(self, socket: TenantSocket) -> None:
        if socket.closed:
            return
        tenant = socket.tenant
        socket.shut()
        del tenant.sockets[socket.socket_no]
        self._handler.socket_closed(tenant, socket)
        if not tenant.sockets and not tenant.closed:
            tenant.closed = True
            del self._tenants[tenant.session]
            self._handler.tenant_closed(tenant)

    def _drop_slow(self, socket: TenantSocket) -> None:
        # Later, because the handler may be in the middle of sending to several sockets of this tenant.
        self._reactor.call_later(0.0, partial(self.drop, socket.tenant))

    # Frames.

    def _ready(self, socket: TenantSocket, events: int) -> None:
        if events & select.EPOLLOUT:
            socket.flush()
        if events & ~select.EPOLLOUT:
            self._read(socket)

    def _read(self, socket: TenantSocket) -> None:
        """One frame a turn, so that a client that sends without pause takes no more than its share."""
        try:
            frame = receive_now(socket.sock)
            if frame is None:
                return
            if not frame:
                self._close_socket(socket)
                return
            header = check_header(frame)
        except OSError:
            self._close_socket(socket)
            return
        except ProtocolError as error:
            self._error(socket, 0, 0, error)
            self._close_socket(socket)
            return
        self._take(socket, header, frame)

    def _take(self, socket: TenantSocket, header: Header, frame: bytes) -> None:
        tenant = socket.tenant
        if header.kind is Kind.REQUEST:
            try:
                self._handler.request(tenant, socket, header, frame)
            except OverspillError as error:
                if isinstance(error, ProtocolError):
                    error.fate = Fate.NEVER_RAN  # it could not even be read
                self._error(socket, header.client_id, header.request_no, error)
        elif header.kind is Kind.CANCEL:
            self._handler.cancel(tenant, socket, header.request_no, header.client_id)
        elif header.kind is Kind.PING:
            socket.send(encode_pong(header.client_id, header.request_no, self._handler.load(tenant)))
        elif header.kind is Kind.BYE:
            self._close_socket(socket)
        else:
            fault = ProtocolError(f"a client sent {header.kind.name}, which is not for clients; update the older side")
            self._error(socket, header.client_id, header.request_no, fault)
            self._close_socket(socket)

    def _error(self, socket: TenantSocket, client_id: int, request_no: int, error: OverspillError) -> None:
        load = self._handler.load(socket.tenant)
        socket.send(encode_error(ErrorFrame(client_id, request_no, self._facts.node_epoch, error, load)))
