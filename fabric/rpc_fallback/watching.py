"""The caller's end of a session's line: one call that stays open, so that a port's death is known while nothing is out.

Its end is no verdict, only a reason to ask: a killed port refuses the connection, one that merely lost the connection
answers over another, and then gets a new line. Where there is none, the link's own pings find out within a second. This
module never asks; whoever watches the channel pings. Read `fabric/rpc_fallback/session_line.py` for the other end.
"""

from __future__ import annotations

import time
import weakref
from threading import Lock
from typing import TYPE_CHECKING

import grpc

from fabric.rpc_fallback.held_call import HeldCall
from fabric.rpc_fallback.line_tries import LineTries
from fabric.rpc_fallback.session import FAILURES
from fabric.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.rpc_fallback.session import Session


class Watching:  # mutable: a line, or none
    """The line of one session. Nothing is opened before `begin`."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tries = LineTries()
        self._lock = Lock()
        self._watcher = Watcher()
        self._begun = False
        self._held: HeldCall | None = None
        self._number = 0

    def begin(self, doubted: Callable[[], None]) -> None:
        """Opens the line. `doubted()` is called, from any thread, when it is over, and when the channel is."""
        self._watcher.watch(doubted)
        self._begun = True
        self.renew()

    def renew(self) -> None:
        """Opens another line where there is none: the port has just answered."""
        if self._held is not None or not self._begun:
            return
        now = time.monotonic()
        with self._lock:
            if self._held is not None or self._session.lost or not self._tries.due(now):
                return
            try:
                call = self._session.hold()
            except FAILURES:  # the channel was closed meanwhile
                return
            self._tries.began(now)
            self._number += 1
            held = self._held = HeldCall(call, "the port is gone", call.cancel)
            watching, number = weakref.ref(self), self._number

        def ended(_why: str, _told: bool) -> None:
            there = watching()
            if there is not None:
                there._over(number, known=call.code() is not grpc.StatusCode.UNIMPLEMENTED)

        held.watch(ended)

    def close(self) -> None:
        """Hangs up, and tells whoever watches that the channel is over: its session is lost by now."""
        with self._lock:
            held, self._held = self._held, None
        if held is not None:
            held.close()
        self._watcher.end()

    def _over(self, number: int, *, known: bool) -> None:
        with self._lock:
            if number != self._number or self._held is None:
                return
            self._held = None
            self._tries.ended(time.monotonic(), known=known)
        if known:
            self._watcher.doubt()
