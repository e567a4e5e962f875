"""A socket of the session for each asyncio loop that sends its own requests, beside the first one.

A request that another thread's loop sends for its caller costs two hand-overs between threads: as much again as the
call itself. So a caller's loop gets a socket of its own, opened in a thread that may wait, and until then (or where the
node refuses one more) it sends through the background loop as before. A loop may be closed at any time: whatever its
socket still waits for is awaited on the background loop then, so that no slot stays lent. This module never sends. Read
`fabric/local/channel.py` next.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Final

from fabric.deadline import Deadline
from fabric.errors import NodeLost, OverspillError
from fabric.local.mux import MuxSocket

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable

    from fabric.local.unclaimed import Unclaimed

    Join = Callable[[Deadline, Callable[[socket.socket], None]], socket.socket]

LOOPS_MAX: Final = 8
"""Sockets for loops in one session: what is left of a session's sockets serves blocking callers."""
JOIN_S: Final = 1.0
"""To be greeted by a node of this host, in a thread that nobody waits for."""
REFUSED_S: Final = 1.0
"""Between a refusal and the next try: a node that is busy now may greet later."""


class LoopSockets:  # mutable: sockets come with loops and go with them
    """The sockets of other loops than the channel's own. `join` opens one more of the session."""

    def __init__(self, join: Join, lost: Callable[[str], None], unclaimed: Unclaimed) -> None:
        self._join, self._lost, self._unclaimed = join, lost, unclaimed
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, MuxSocket | None] = {}
        self._again_s = 0.0  # when one that got none may ask again
        self._left: list[MuxSocket] = []
        """Those of closed loops, on which something is awaited still."""
        self._greeting: set[socket.socket] = set()
        self._reason = ""

    def of(self, loop: asyncio.AbstractEventLoop) -> MuxSocket | None:
        """The loop's own socket, once it has one that is read."""
        mux = self._by_loop.get(loop)
        return mux if mux is not None and mux.loop is loop else None

    def wanted(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether to ask `open` for a socket of this loop: it has none, and none was refused a moment ago."""
        return loop not in self._by_loop and time.monotonic() >= self._again_s

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Opens the socket of `loop`, once; it blocks for JOIN_S at most. Where the node gives none, there is none."""
        with self._lock:
            if self._reason or loop in self._by_loop:
                return
            if sum(not each.is_closed() for each in self._by_loop) >= LOOPS_MAX:
                self._again_s = time.monotonic() + REFUSED_S
                return
            self._by_loop[loop] = None
        begun: list[socket.socket] = []

        def greeting(sock: socket.socket) -> None:
            with self._lock:
                if self._reason:
                    raise NodeLost(f"the channel is closed ({self._reason}); choose another")
                begun.append(sock)
                self._greeting.add(sock)

        try:
            sock = self._join(Deadline.after(JOIN_S, time.monotonic()), greeting)
        except (OverspillError, OSError):  # one more is a convenience: the background loop serves as well
            with self._lock:
                del self._by_loop[loop]
                self._again_s = time.monotonic() + REFUSED_S
            return
        finally:
            with self._lock:
                self._greeting.difference_update(begun)
        mux = MuxSocket(sock, self._lost, self._unclaimed)
        if ended := self._keep(loop, mux):
            mux.end(ended)
            return

        def attach() -> None:
            with suppress(NodeLost):  # it was ended meanwhile
                mux.attach()

        with suppress(RuntimeError):  # the loop was closed meanwhile: `sweep` finds it
            loop.call_soon_threadsafe(attach)

    def _keep(self, loop: asyncio.AbstractEventLoop, mux: MuxSocket) -> str:
        """Whatever ends the session ends this socket too from now on. Returns why it has ended, if it has."""
        with self._lock:
            self._by_loop[loop] = mux
            return self._reason

    def sweep(self) -> None:
        """On the background loop: takes over what closed loops left, and closes what nobody waits for."""
        if not self._by_loop and not self._left:
            return
        with self._lock:
            closed = [loop for loop, mux in self._by_loop.items() if loop.is_closed() and mux is not None]
            self._left += [mux for loop in closed if (mux := self._by_loop.pop(loop)) is not None]
            left = list(self._left)
        for mux in left:
            with suppress(NodeLost):
                mux.attach()
            if mux.reason or not (mux.zombies or mux.running):
                mux.end("its loop was closed")
                with self._lock:
                    self._left.remove(mux)

    @property
    def all(self) -> tuple[MuxSocket, ...]:
        """Every socket that may have calls."""
        with self._lock:
            return (*(mux for mux in self._by_loop.values() if mux is not None), *self._left)

    def end(self, reason: str) -> None:
        """Fails every call and closes every socket. Safe from any thread, twice too."""
        with self._lock:
            self._reason = self._reason or reason
            for sock in self._greeting:
                with suppress(OSError):
                    sock.shutdown(SHUT_RDWR)
        for mux in self.all:
            mux.end(reason)
