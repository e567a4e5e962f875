"""The port's end of the lanes: one listening socket, and one thread for each lane that showed its token.

A stranger gets a few seconds and one thread of a bounded number. A body is received straight into a slot of the
caller's arena, and the reply is sent from the slot it lies in. A reply's memory is given back when the caller's receipt
arrives; without one it is kept for whoever repeats the id. Read `fabric/rpc_fallback/server.py` next.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.errors import (
    AccessDenied,
    AddressInUse,
    ConfigError,
    DeadlineExceeded,
    OverspillError,
    ProtocolError,
    ResourceExhausted,
)
from fabric.frame import Kind, bare_frame, check_header
from fabric.hello import common_version, decode_hello
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, RequestId
from fabric.rpc_fallback.lane import Lane, LaneBroken, tune
from fabric.rpc_fallback.lane_tls import TlsSocket
from fabric.rpc_fallback.wire import error_outcome, read_request

if TYPE_CHECKING:
    import ssl

    from fabric.frame import RequestFrame
    from fabric.layout import Layout
    from fabric.rpc_fallback.config import RpcServerConfig
    from fabric.rpc_fallback.peers import Peer, Peers
    from fabric.rpc_fallback.wire import Outcome

IDLE_S = 120.0
"""A lane that carries nothing for two minutes is closed; the caller opens another one when it needs it."""
RECEIPT_S = 5.0
"""A caller that has read a reply says so at once; one that is stuck loses the lane, not the reply."""
ACCEPT_S = 0.2
"""How often the accepting thread looks whether it should end; closing a socket does not wake its accept."""
_log = logging.getLogger(__name__)


def listen(host: str, port: int) -> socket.socket:
    """A listening TCP socket. Raises AddressInUse or ConfigError."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tune(sock)  # accepted sockets inherit it
            sock.bind((host, port))
            sock.listen(64)
        except BaseException:  # whatever it was, the socket must not stay open behind it
            sock.close()
            raise
        return sock
    except OSError as error:
        if error.errno == 98:  # EADDRINUSE
            raise AddressInUse(f"another process listens on {host}:{port}; stop it, or give another port") from None
        raise ConfigError(f"cannot listen on {host}:{port} ({error}); give an address of this machine") from None


class LaneServer:  # mutable: owns a socket and threads
    """Serves lanes to the callers in `peers`."""

    def __init__(self, config: RpcServerConfig, peers: Peers, context: ssl.SSLContext | None) -> None:
        self._config = config
        self._peers = peers
        self._context = context
        self._strangers_max = 16
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._unknown: set[socket.socket] = set()
        self._stopping = False
        self._socket = listen(config.host, config.lane_port)
        self._socket.settimeout(ACCEPT_S)
        self._acceptor = threading.Thread(target=self._accept, name="overspill-lane-accept", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._socket.getsockname()[1])

    def start(self) -> None:
        """Begins to accept."""
        self._acceptor.start()

    def stop(self, deadline: Deadline) -> None:
        """Accepts no more, and waits until the deadline for lanes whose peers were closed."""
        with self._lock:
            self._stopping = True
            unknown, threads = tuple(self._unknown), tuple(self._threads)
        for sock in unknown:
            _shut(sock)
        if self._acceptor.is_alive():
            self._acceptor.join(ACCEPT_S * 5)
        self._socket.close()
        for thread in threads:
            thread.join(max(0.1, deadline.remaining_s(time.monotonic())))

    def _accept(self) -> None:
        while not self._stopping:
            try:
                sock, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as error:
                if not self._stopping:
                    _log.warning("no lane could be accepted: %s", error)
                    time.sleep(ACCEPT_S)  # out of descriptors: the lanes that end give some back
                continue
            with self._lock:
                full = len(self._unknown) >= self._strangers_max or self._stopping
                if not full:
                    self._unknown.add(sock)
                    thread = threading.Thread(target=self._greet, args=(sock,), name="overspill-lane", daemon=True)
                    self._threads.add(thread)
            if full:
                sock.close()
                continue
            thread.start()

    def _greet(self, stranger: socket.socket) -> None:
        """The whole life of one connection: TLS, token, then requests until one side ends it."""
        lane: Lane | None = None
        try:
            deadline = Deadline(time.monotonic() + self._config.handshake_s)
            if self._context is None:
                lane = Lane(stranger)
            else:
                tls = TlsSocket(stranger, self._context, None)
                tls.handshake(deadline)
                lane = Lane(tls)
            peer = self._admit(lane, deadline)
            with self._lock:
                self._unknown.discard(stranger)
            try:
                if not self._stopping:
                    self._serve(lane, peer)
            finally:
                peer.lanes.discard(lane)
        except (LaneBroken, OverspillError, OSError, ValueError) as error:
            _log.debug("a lane ended: %s", str(error))
        finally:
            with self._lock:
                self._unknown.discard(stranger)
                self._threads.discard(threading.current_thread())
            stranger.close()

    def _admit(self, lane: Lane, deadline: Deadline) -> Peer:
        """Checks the token. Raises (and tells the stranger) AccessDenied or ProtocolError."""
        try:
            frame = lane.receive_frame(deadline)
            hello = decode_hello(frame, check_header(frame))
            common_version(hello)
            peer = self._peers.find_by_lane(hello.client_id, hello.session)
            if peer is None:
                raise AccessDenied("no session has this lane token; say Hello over gRPC first")
            if len(peer.lanes) >= self._config.lanes_per_peer:
                raise ResourceExhausted(f"a caller has {self._config.lanes_per_peer} lanes at most; close one")
        except OverspillError as error:
            lane.send(error_outcome(error, RequestId(0, 0), 0).frame, b"", deadline)
            raise
        peer.lanes.add(lane)
        lane.send(bare_frame(Kind.WELCOME, peer.client_id), b"", deadline)
        return peer

    def _serve(self, lane: Lane, peer: Peer) -> None:
        unconfirmed: tuple[RequestId, Outcome] | None = None
        while not self._stopping and not peer.closed:
            frame = lane.receive_frame(Deadline(time.monotonic() + IDLE_S))
            if unconfirmed is not None:
                peer.exchange.delivered(*unconfirmed)
            try:
                header = check_header(frame)
                if header.kind is Kind.BYE:
                    return
                request, layout = read_request(frame, header)
            except ProtocolError as error:
                soon = Deadline(time.monotonic() + 1.0)
                lane.send(error_outcome(error, RequestId(peer.client_id, 0), 0).frame, b"", soon)
                self._peers.break_off(peer, error)
                return
            unconfirmed = _one(lane, peer, request, layout)


def _one(lane: Lane, peer: Peer, request: RequestFrame, layout: Layout) -> tuple[RequestId, Outcome] | None:
    """Receives a body, asks the node, sends what came of it, and waits for the receipt of a large reply. Returns what
    the lane's next frame will confirm."""
    deadline = Deadline.from_remaining_us(request.budget_us, time.monotonic())
    request_id = RequestId(request.client_id, request.request_no)
    try:
        memory = peer.stage(request.body_bytes)
    except OverspillError as error:
        lane.drain(request.body_bytes, deadline)
        lane.send(error_outcome(error, request_id, request.node_epoch).frame, b"", deadline)
        return None
    try:
        view = memory.view if isinstance(memory, Lease) else memoryview(memory)
        lane.receive_into(view[: request.body_bytes], deadline)
    except BaseException:  # whatever ends the wait, the slot must return
        if isinstance(memory, Lease):
            memory.release()
        raise
    outcome = peer.ask(request, layout, memory, deadline)
    if outcome is None:
        raise LaneBroken("the request was repeated on the stream meanwhile")
    arrived = False
    try:
        # A second on top: the caller ends a wait that is over, and a reply at the last moment should still get through.
        lane.send(outcome.frame, outcome.body, Deadline(deadline.at_s + 1.0))
        if len(outcome.body) >= SMALL_BODY_BYTES:
            receipt = lane.receive_frame(Deadline(time.monotonic() + RECEIPT_S))
            arrived = check_header(receipt).kind is Kind.DONE
        else:
            return request_id, outcome
    except DeadlineExceeded as error:
        raise LaneBroken(f"the caller does not read its reply ({error})") from None
    finally:
        if arrived:
            peer.exchange.delivered(request_id, outcome)
        else:
            peer.exchange.undelivered(request_id, outcome)
    return None


def _shut(sock: socket.socket) -> None:
    try:
        socket.socket.shutdown(sock, socket.SHUT_RDWR)
    except OSError:
        return  # it ended by itself
