"""The port's end of a session's line: a call that says nothing and stays open as long as the session.

A caller's kernel so learns of the port's death at once, and the port of the caller's. There is one per session, which
a newer one ends, and sessions are bounded: however many a hostile caller opens, it holds one. It costs no thread. This
module never ends a session. Read `fabric/rpc_fallback/peers.py` for the sessions.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.rpc_fallback.lines import Send
    from fabric.rpc_fallback.peers import Peer


class SessionLine:  # mutable: a call, or none
    """The open call of one session."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._send: Send | None = None
        self._ended = False

    def hold(self, send: Send) -> None:
        """Takes a call, in the place of the one before."""
        with self._lock:
            earlier, self._send = self._send, None if self._ended else send
            late = send if self._ended else earlier
        if late is not None:
            late(None)

    def let_go(self, send: Send) -> bool:
        """The caller hung up. Whether that was the line, and none that we had ended."""
        with self._lock:
            if self._send is not send:
                return False
            self._send = None
            return True

    def end(self) -> None:
        """Hangs up, for good. Safe twice."""
        with self._lock:
            send, self._send, self._ended = self._send, None, True
        if send is not None:
            send(None)


class SessionLines:
    """The method `Line`, for a gRPC server; `find` knows the callers' sessions."""

    experimental_non_blocking = True
    """As in `fabric/rpc_fallback/lines.py`: gRPC gets its thread back at once."""

    def __init__(self, find: Callable[[bytes], Peer | None]) -> None:
        self._find = find

    def __call__(self, message: bytes, context: grpc.ServicerContext, send: Send) -> None:
        """One call; nothing is ever said on it."""
        peer = self._find(message)
        if peer is None:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "unknown session; say Hello first")
            raise AssertionError  # abort raises
        peer.line.hold(send)
        if not context.add_callback(lambda: peer.hung_up(send)):
            peer.hung_up(send)
