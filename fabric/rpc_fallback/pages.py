"""Load pages over gRPC: one call brings a caller's lines and the page as they are; the caller checks them.

The port reads the page as any reader of its host does and asks nobody at the node, so it is no sign of life. This
module never decides what a report is worth. Read `fabric/load_page.py` for the page itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import grpc

from fabric.errors import DeadlineExceeded, Fate, OverspillError, Unavailable
from fabric.frame import check_header, decode_error
from fabric.load_page import LINES_AT, LINES_BYTES, TRIES_MAX, Reading, read_both
from fabric.message import RequestId
from fabric.rpc_fallback.session import FAILURES, Session, too_late
from fabric.rpc_fallback.wire import SESSION_BYTES, error_outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.rpc_fallback.peers import Peers

    ReadRaw = Callable[[int], bytes]
    """A client's lines and the page. Raises Unavailable where there is none."""

_RAW_BYTES = LINES_BYTES + LINES_AT


class Pages:
    """The method `Page`, for a gRPC server. `read` is None at a port whose node has no page."""

    def __init__(self, peers: Peers, node_epoch: int, read: ReadRaw | None) -> None:
        self._peers, self._node_epoch, self._read = peers, node_epoch, read

    def __call__(self, message: bytes, context: grpc.ServicerContext) -> bytes:
        """The caller's lines and the page, or an ERROR frame."""
        peer = self._peers.find(message[:SESSION_BYTES])
        if peer is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown session; say Hello first")
            raise AssertionError  # abort raises
        try:
            if self._read is None:
                raise Unavailable("the node publishes no load page; its answers tell its load")
            return self._read(peer.client_id)
        except OverspillError as error:
            return error_outcome(error, RequestId(0, 0), self._node_epoch).frame


def read_page(session: Session, deadline: Deadline) -> Reading:
    """What this client reads. Blocks. Raises Unavailable where there is no whole page, DeadlineExceeded, NodeLost."""
    for _ in range(TRIES_MAX):
        left_s, used = deadline.remaining_s(time.monotonic()), session.token
        if not left_s:
            raise too_late(Fate.NEVER_RAN)
        try:
            raw = session.page(used, timeout=left_s)
        except FAILURES as failure:
            if session.renewed(failure, used, deadline):
                continue
            error = session.error(failure)
            if isinstance(error, DeadlineExceeded):
                error.fate = Fate.NEVER_RAN
            raise error from None
        if len(raw) != _RAW_BYTES:
            raise decode_error(raw, check_header(raw)).error
        reading = read_both(raw[:LINES_BYTES], raw[LINES_BYTES:], session.client_id, session.peer.node_epoch)
        if reading is not None:
            return reading
    raise Unavailable(f"no whole load page was met in {TRIES_MAX} reads; the node's answers tell its load")
