"""Sockets for blocking calls, lent to one caller's thread at a time.

A call that ends early (its time is over, its thread is interrupted) leaves a *zombie*: its socket and slots are used
again only after the node's final frame for it has come, which is looked for whenever a socket is wanted. This module
never retries. Read `fabric/local/mux.py` for the asynchronous half, `fabric/local/channel.py` for the whole.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from socket import SHUT_RDWR
from typing import TYPE_CHECKING, Final

from fabric.errors import Fate, NodeLost, ResourceExhausted
from fabric.local.pooled import PooledSocket

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.local.unclaimed import Unclaimed
    from fabric.memory.arena import Arena
    from fabric.message import RequestId
    from fabric.reply_sizes import ReplySizes
    from fabric.transport import Answer, Call

_LOOK_S: Final = 0.05
"""How often a thread that waits for a socket looks at the zombies: far below any timeout, far above its cost."""


class SocketPool:  # mutable: sockets are idle, busy or zombies
    """The blocking half of a channel. `connect` makes one more socket of the session, and tells of it before it waits;
    `lost` tells the channel that the session died, and why; `reason` is why it is closed, empty while it is open."""

    def __init__(
        self,
        arena: Arena,
        node_epoch: int,
        sizes: ReplySizes,
        sockets_max: int,
        connect: Callable[[Deadline, Callable[[socket.socket], None]], socket.socket],
        lost: Callable[[str], None],
        unclaimed: Unclaimed,
    ) -> None:
        self._arena = arena
        self._node_epoch = node_epoch
        self._sizes = sizes
        self._sockets_max = sockets_max
        self._connect = connect
        self._lost = lost
        self._unclaimed = unclaimed
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._waiting = 0
        self._all: set[PooledSocket] = set()
        self._opening = 0
        self._greeting: dict[int, socket.socket] = {}
        self._idle: list[PooledSocket] = []
        self._zombies: list[PooledSocket] = []
        self.closing = ""
        self.reason = ""

    def call(self, call: Call, deadline: Deadline) -> Answer:
        """One attempt, in this thread. Raises OverspillError."""
        pooled = self._acquire(deadline)
        try:
            answer = pooled.exchange(call, deadline, self._node_epoch, self._sizes)
        except BaseException as error:  # an interrupted call has to leave its slots in quarantine as well
            fault = pooled.fault
            if fault:
                self._lost(fault)
            self._part(pooled)
            if fault and isinstance(error, NodeLost):
                raise NodeLost(f"the node is gone ({self.reason}); choose another", error.fate) from None
            raise
        self._release(pooled)
        return answer

    def cancel(self, request: RequestId) -> None:
        """Asks the node for an early end of a call that runs in some thread."""
        with self._lock:
            for pooled in self._all:
                if pooled.request == request:
                    pooled.cancel(request)

    def _part(self, pooled: PooledSocket) -> None:
        """The call failed: its socket becomes idle when nothing is out, else a zombie."""
        pooled.give_up()
        if pooled.request is None:
            self._release(pooled)
            return
        with self._lock:
            if self.reason:
                self._close_socket(pooled)
            else:
                self._zombies.append(pooled)

    def _acquire(self, deadline: Deadline) -> PooledSocket:
        if self.closing:
            raise NodeLost(f"the channel is closed ({self.closing}); choose another", Fate.NEVER_RAN)
        if self._zombies:
            self.reap()
        try:
            return self._idle.pop()  # the last one used: its slots are in the cache
        except IndexError:
            pass
        while True:
            pooled, may_open = self._take_or_wait(deadline)
            if pooled is not None:
                return pooled
            if may_open:
                return self._open(deadline)
            self.reap()

    def _take_or_wait(self, deadline: Deadline) -> tuple[PooledSocket | None, bool]:
        """An idle socket, or leave to open one, or neither after a short wait."""
        with self._lock:
            self._waiting += 1  # before the look at the idle ones, so that a release in between notifies
            try:
                if self.closing:
                    raise NodeLost(f"the channel is closed ({self.closing}); choose another", Fate.NEVER_RAN)
                if self._idle:
                    return self._idle.pop(), False
                if len(self._all) + self._opening < self._sockets_max:
                    self._opening += 1
                    return None, True
                remaining_s = deadline.remaining_s(time.monotonic())
                if not remaining_s:
                    raise ResourceExhausted(
                        f"all {len(self._all)} sockets of the channel are in use, {len(self._zombies)} of them by"
                        " requests that were given up and still run; send fewer at once"
                    )
                self._freed.wait(min(remaining_s, _LOOK_S))
                return None, False
            finally:
                self._waiting -= 1

    def _open(self, deadline: Deadline) -> PooledSocket:
        try:
            sock = self._connect(deadline, self._begun)
            try:
                pooled = PooledSocket(sock, self._arena)
            except BaseException:  # no room for its slots, or an interrupt: the socket must not stay
                sock.close()
                raise
        finally:
            with self._lock:
                self._opening -= 1
                self._greeting.pop(threading.get_ident(), None)
        with self._lock:
            self._all.add(pooled)
            if self.reason:
                self._close_socket(pooled)
                raise NodeLost(f"the channel is closed ({self.reason}); choose another", Fate.NEVER_RAN)
        return pooled

    def _begun(self, sock: socket.socket) -> None:
        """A stopped node greets nobody: the end of the channel must wake those who wait for it."""
        with self._lock:
            if self.reason:
                raise NodeLost(f"the channel is closed ({self.reason}); choose another", Fate.NEVER_RAN)
            self._greeting[threading.get_ident()] = sock

    def _release(self, pooled: PooledSocket) -> None:
        self._idle.append(pooled)
        if self._waiting or self.reason:
            with self._lock:
                self._freed.notify()
                if self.reason:
                    self._close_idle()

    def reap(self) -> None:
        """Takes the final frames of zombies that have come, without waiting."""
        with self._lock:
            for pooled in tuple(self._zombies):
                if pooled.ended(self._unclaimed):
                    self._zombies.remove(pooled)
                    if pooled.spent:
                        self._close_socket(pooled)
                    else:
                        self._idle.append(pooled)
                    self._freed.notify()
            fault = next((pooled.fault for pooled in self._zombies if pooled.fault), "")
        if fault:
            self._lost(fault)

    @property
    def busy(self) -> int:
        """Sockets whose caller waits for an answer."""
        with self._lock:
            return len(self._all) + self._opening - len(self._idle) - len(self._zombies)

    @property
    def zombies(self) -> int:
        """Sockets that wait for the final frame of a request that was given up."""
        return len(self._zombies)

    def wait_idle(self, deadline: Deadline) -> None:
        """Waits until no call is running, or until the deadline."""
        with self._lock:
            self._waiting += 1
            try:
                while len(self._all) + self._opening > len(self._idle) + len(self._zombies):
                    remaining_s = deadline.remaining_s(time.monotonic())
                    if not remaining_s:
                        return
                    self._freed.wait(min(remaining_s, _LOOK_S))
            finally:
                self._waiting -= 1

    def end(self, reason: str) -> None:
        """Wakes every caller and closes every socket; those in use are closed by the thread that uses them."""
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            self.closing = self.closing or reason
            for pooled in self._zombies:
                self._close_socket(pooled)
            self._zombies = []
            self._close_idle()
            for sock in (*(pooled.sock for pooled in self._all), *self._greeting.values()):
                with suppress(OSError):
                    sock.shutdown(SHUT_RDWR)
            self._freed.notify_all()

    def _close_idle(self) -> None:
        while self._idle:
            self._close_socket(self._idle.pop())

    def _close_socket(self, pooled: PooledSocket) -> None:
        # Its slots go with the arena: the session is over, but an executor may still be writing to them.
        self._all.discard(pooled)
        pooled.sock.close()
