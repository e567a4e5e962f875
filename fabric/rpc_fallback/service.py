"""The methods of `overspill.Fabric`, as a port's gRPC server calls them.

Each checks what came, finds the caller's session, and asks the node through it. Refusals are ERROR frames, so that they
arrive as our errors; gRPC's own status is used where there is no session to answer in. This module never listens:
`fabric/rpc_fallback/server.py` does. Read that next.
"""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

import grpc

from fabric.deadline import TIMEOUT_MAX_S, Deadline
from fabric.errors import AccessDenied, Draining, OverspillError, ProtocolError, ReplyTooLarge, Unavailable
from fabric.frame import Kind, bare_frame, check_header
from fabric.hello import Welcome, common_version, decode_hello, encode_welcome
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, RequestId
from fabric.rpc_fallback.lines import Lines
from fabric.rpc_fallback.pages import Pages
from fabric.rpc_fallback.session_line import SessionLines
from fabric.rpc_fallback.wire import (
    CLIENT,
    INLINE_REPLY_BYTES,
    OFFER_BYTES_MAX,
    PIECE_BYTES,
    SERVICE,
    SESSION_BYTES,
    TOKEN_METADATA,
    Outcome,
    error_outcome,
    fill,
    pong_frame,
    read_request,
    split,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

    from fabric.frame import Load, RequestFrame
    from fabric.layout import Layout
    from fabric.rpc_fallback.config import RpcServerConfig
    from fabric.rpc_fallback.pages import ReadRaw
    from fabric.rpc_fallback.peers import Peer, Peers
    from fabric.transport import Channel, PeerFacts

    Bootstrap = Callable[[int, bytes, float], tuple[bytes, socket.socket]]
    """Brings a client's offer to the node's rdma port, and the answer back, within some seconds; the connection stays
    open as long as the queue pairs."""

PING_S = 5.0
BYE_S = 1.0
_NOBODY = RequestId(0, 0)


class Service:
    """The methods. `ask_ping` runs a channel's ping on the port's loop; `lane_port` is 0 where there are no lanes."""

    def __init__(
        self,
        config: RpcServerConfig,
        facts: PeerFacts,
        peers: Peers,
        lane_port: int,
        ask_ping: Callable[[Channel, Deadline], Load],
        bootstrap: Bootstrap | None = None,
        read_page: ReadRaw | None = None,
    ) -> None:
        self._config = config
        self._facts = facts
        self._peers = peers
        self._lane_port = lane_port
        self._ask_ping = ask_ping
        self._bootstrap = bootstrap
        self.lines, self._pages = Lines(self._offered), Pages(peers, facts.node_epoch, read_page)
        self.draining = False

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a gRPC server."""
        unary = grpc.unary_unary_rpc_method_handler
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Hello": unary(self._hello),
                "Call": unary(self._call),
                "Stream": grpc.stream_stream_rpc_method_handler(self._stream),
                "Ping": unary(self._ping),
                "Cancel": unary(self._cancel),
                "Bye": unary(self._bye),
                "Page": unary(self._pages),
                "Line": grpc.unary_stream_rpc_method_handler(SessionLines(self._peers.find)),
                "RdmaLine": grpc.unary_stream_rpc_method_handler(self.lines),
            },
        )

    def _hello(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            if self.draining:
                raise Draining(f"node {self._facts.node_id} takes no new callers; ask another one")
            frame, header, _ = split(message)
            hello = decode_hello(frame, header)
            version = common_version(hello)
            self._check_token(context)
            peer = self._peers.admit(hello.client_id, hello.arena_bytes)
        except OverspillError as error:
            return error_outcome(error, _NOBODY, self._facts.node_epoch).frame
        facts = peer.channel.peer
        arena = peer.channel.arena
        welcome = Welcome(
            facts.node_id,
            facts.node_epoch,
            version,
            peer.session.hex(),
            arena.nbytes if arena is not None else 0,
            self._config.lanes_per_peer,
            self._lane_port,
            peer.lane_token,
        )
        return encode_welcome(welcome, hello.client_id)

    def _check_token(self, context: grpc.ServicerContext) -> None:
        if not self._config.token:
            return
        given = next((value for key, value in context.invocation_metadata() if key == TOKEN_METADATA), "")
        wanted = f"Bearer {self._config.token}"
        if not hmac.compare_digest(str(given).encode(), wanted.encode()):
            raise AccessDenied("the node's operator asks for a token, and this one is not it; set the rpc token")

    def _call(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._peer(message, context)
        try:
            frame, header, body = split(message, SESSION_BYTES)
            request, layout = read_request(frame, header)
        except ProtocolError as error:
            return self._break_off(peer, error)
        outcome, request_id = self._ask(peer, request, layout, body, context)
        if len(outcome.body) > INLINE_REPLY_BYTES:
            peer.exchange.undelivered(request_id, outcome)
            needed = len(outcome.body)
            large = ReplyTooLarge(f"the reply has {needed} bytes; ask for it on a lane or stream", needed_bytes=needed)
            return error_outcome(large, request_id, request.node_epoch).frame
        reply = b"".join((outcome.frame, outcome.body))
        _settle(peer, request_id, outcome, sent=context.is_active())
        return reply

    def _ask(
        self, peer: Peer, request: RequestFrame, layout: Layout, body: memoryview, context: grpc.ServicerContext
    ) -> tuple[Outcome, RequestId]:
        request_id = RequestId(request.client_id, request.request_no)
        deadline = Deadline.from_remaining_us(request.budget_us, time.monotonic())
        memory: Lease | bytes | bytearray
        if len(body) < SMALL_BODY_BYTES:
            memory = bytes(body)
        else:
            try:
                memory = peer.stage(len(body))
            except OverspillError as error:
                return error_outcome(error, request_id, request.node_epoch), request_id
            _view(memory)[: len(body)] = body
        return self._answer(peer, request, layout, memory, deadline, context), request_id

    def _answer(
        self,
        peer: Peer,
        request: RequestFrame,
        layout: Layout,
        memory: Lease | bytes | bytearray,
        deadline: Deadline,
        context: grpc.ServicerContext,
    ) -> Outcome:
        request_id = RequestId(request.client_id, request.request_no)
        # gRPC calls it at the end of every call; a request that is answered by then is not running any more.
        if not context.add_callback(lambda: peer.cancel(request_id)):
            deadline = Deadline(time.monotonic())
        outcome = peer.ask(request, layout, memory, deadline)
        if outcome is None:
            context.abort(grpc.StatusCode.CANCELLED, "the request was repeated meanwhile, and is answered there")
            raise AssertionError  # abort raises
        return outcome

    def _stream(self, pieces: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(pieces, b"")
        peer = self._peer(first, context)
        # Without a deadline of the caller's, gRPC tells nothing or some hundred years; of one that is over, zero.
        remaining_s = context.time_remaining()
        if remaining_s is None or remaining_s >= TIMEOUT_MAX_S:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a stream needs a deadline; give the call a timeout")
        try:
            frame = first[SESSION_BYTES:]
            request, layout = read_request(frame, check_header(frame))
        except ProtocolError as error:
            yield self._break_off(peer, error)
            return
        request_id = RequestId(request.client_id, request.request_no)
        deadline = Deadline.from_remaining_us(request.budget_us, time.monotonic())
        try:
            memory = peer.stage(request.body_bytes)
        except OverspillError as error:
            yield error_outcome(error, request_id, request.node_epoch).frame
            return
        try:
            fill(_view(memory)[: request.body_bytes], pieces)
        except ProtocolError as error:
            _release(memory)
            # This stream alone: gRPC may tell the end of one that was cancelled as if its caller had sent all.
            yield error_outcome(error, request_id, request.node_epoch).frame
            return
        except BaseException:
            _release(memory)  # the caller went away
            raise
        outcome = self._answer(peer, request, layout, memory, deadline, context)
        arrived = False
        try:
            yield outcome.frame
            body = memoryview(outcome.body)
            for at in range(0, len(body), PIECE_BYTES):
                yield bytes(body[at : at + PIECE_BYTES])
            arrived = context.is_active()
        finally:
            _settle(peer, request_id, outcome, sent=arrived)

    def _ping(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._peer(message, context)
        peer.heard_s = time.monotonic()
        deadline = Deadline.after(min(context.time_remaining() or PING_S, PING_S), peer.heard_s)
        try:
            check_header(message[SESSION_BYTES:])
            return pong_frame(self._ask_ping(peer.channel, deadline))
        except ProtocolError as error:
            return self._break_off(peer, error)
        except OverspillError as error:
            return error_outcome(error, _NOBODY, self._facts.node_epoch).frame

    def _cancel(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._peer(message, context)
        try:
            header = check_header(message[SESSION_BYTES:])
            if header.kind is not Kind.CANCEL:
                raise ProtocolError(f"{header.kind.name} came as Cancel; the peer's channel is closed")
        except ProtocolError as error:
            return self._break_off(peer, error)
        peer.cancel(RequestId(header.client_id, header.request_no))
        return b""

    def _bye(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        peer = self._peer(message, context)
        self._peers.drop(peer, Deadline.after(BYE_S, time.monotonic()))
        return bare_frame(Kind.BYE)

    def _offered(self, message: bytes, context: grpc.ServicerContext) -> tuple[bytes, socket.socket | None]:
        """An offer of queue pairs, which the rdma wire understands; what is checked here is whose it is."""
        try:
            if not CLIENT.size <= len(message) <= OFFER_BYTES_MAX:
                raise ProtocolError("what came is no offer of RDMA; the caller must speak our protocol")
            if self.draining:
                raise Draining(f"node {self._facts.node_id} takes no new callers; ask another one")
            self._check_token(context)
            if self._bootstrap is None:
                raise Unavailable("this node offers no rdma; start it with --wires local,rdma,rpc, or use rpc")
            (client_id,) = CLIENT.unpack_from(message)
            return self._bootstrap(client_id, message[CLIENT.size :], PING_S)
        except OverspillError as error:
            return error_outcome(error, _NOBODY, self._facts.node_epoch).frame, None

    def _peer(self, message: bytes, context: grpc.ServicerContext) -> Peer:
        peer = self._peers.find(message[:SESSION_BYTES])
        if peer is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown session; say Hello first")
            raise AssertionError  # abort raises
        return peer

    def _break_off(self, peer: Peer, error: ProtocolError) -> bytes:
        self._peers.break_off(peer, error)
        return error_outcome(error, _NOBODY, self._facts.node_epoch).frame


def _settle(peer: Peer, request_id: RequestId, outcome: Outcome, *, sent: bool) -> None:
    """gRPC tells that a reply was sent, not that it arrived: one that lies in a slot stays there until the caller
    acknowledges it, since the id may come again."""
    if sent and outcome.lease is None:
        peer.exchange.delivered(request_id, outcome)
    else:
        peer.exchange.undelivered(request_id, outcome)


def _view(memory: Lease | bytearray) -> memoryview:
    return memory.view if isinstance(memory, Lease) else memoryview(memory)


def _release(memory: Lease | bytearray) -> None:
    if isinstance(memory, Lease):
        memory.release()
