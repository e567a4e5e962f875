"""A call that stays open, as its caller holds it: its end tells of the other side's death within milliseconds.

An offer of RDMA is held so for as long as its queue pairs, since RDMA itself tells nothing of a peer that died; a
session has one, since an idle connection is asked once a second only. This module never opens a call, and never judges
what its end is worth. Read `fabric/rpc_fallback/bootstrap.py` and `fabric/rpc_fallback/watching.py` for whose they are.
"""

from __future__ import annotations

import weakref
from threading import Lock
from typing import TYPE_CHECKING

import grpc

if TYPE_CHECKING:
    from collections.abc import Callable


class HeldCall:  # mutable: open, then over
    """`watch` and `close` are `fabric/rdma/line.py`'s. `gone` says what it means that the other side ended the call;
    `hang_up` is our own way to end it. One that nobody holds any more is cancelled by gRPC."""

    def __init__(self, call: grpc.Call, gone: str, hang_up: Callable[[], object]) -> None:
        self._call: grpc.Call | None = call
        self._gone, self._hang_up = gone, hang_up
        self._lock = Lock()
        self._ended: Callable[[str, bool], None] | None = None

    def watch(self, ended: Callable[[str, bool], None]) -> None:
        """`ended(why, told)` is called once, from a thread of gRPC's, when the call is over and we did not close it."""
        with self._lock:
            call, self._ended = self._call, ended
        if call is not None and not call.add_callback(_weakly(self)):  # it is over already
            self._over()

    def close(self) -> None:
        """Hangs up. Safe from any thread, twice too."""
        with self._lock:
            self._call = self._ended = None
        self._hang_up()

    def _over(self) -> None:
        with self._lock:
            call, ended = self._call, self._ended
            self._call = self._ended = None
        if call is not None and ended is not None:
            code = call.code()
            told = code is grpc.StatusCode.OK
            ended(self._gone if told else f"the line broke: {code.name}", told)


def _weakly(held: HeldCall) -> Callable[[], None]:
    """gRPC keeps what it will call back: held by that, a call that was forgotten would stay open for ever."""
    reference = weakref.ref(held)

    def over() -> None:
        there = reference()
        if there is not None:
            there._over()

    return over
