"""Pings of one connection: frames that the node's own code answers, with its load.

An acknowledgement of the NIC says nothing of the process behind it, so the link asks for these. This module never
judges the peer by them. Read `fabric/rdma/channel.py` next.
"""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, NodeLost
from fabric.frame import Kind, bare_frame
from fabric.hello import decode_pong
from fabric.rdma.heads import HeadKind

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline
    from fabric.frame import Header, Load
    from fabric.rdma.connection import Connection


class Pings:  # mutable: what is out
    """The pings of one caller."""

    def __init__(self, connection: Connection, client_id: int) -> None:
        self._connection, self._client_id = connection, client_id
        self._lock = Lock()
        self._out: dict[int, tuple[Callable[[], None], list[Load]]] = {}
        self._number = 0
        self._reason = ""

    def life(self, deadline: Deadline, ring: Callable[[], None]) -> Generator[None, None, Load]:
        """One ping; yields to wait. Raises DeadlineExceeded, NodeLost."""
        with self._lock:
            self._number += 1
            number = self._number
            loads: list[Load] = []
            self._out[number] = (ring, loads)
        try:
            self._connection.send(HeadKind.FRAME, bare_frame(Kind.PING, self._client_id, number), control=True)
            while not loads:
                if self._reason:
                    raise NodeLost(f"the node is gone ({self._reason}); choose another", Fate.NEVER_RAN)
                if deadline.expired(time.monotonic()):
                    raise DeadlineExceeded("no answer came in time; give more time")
                yield
            return loads[0]
        finally:
            with self._lock:
                self._out.pop(number, None)

    def answered(self, frame: bytes, header: Header) -> None:
        """A PONG came, of one that is awaited or not any more. Raises ProtocolError."""
        waiting = self._out.get(header.request_no)
        if waiting is not None:
            waiting[1].append(decode_pong(frame, header))
            waiting[0]()

    def lost(self, reason: str) -> None:
        """None comes any more."""
        with self._lock:
            self._reason = reason
            waiting = list(self._out.values())
        for ring, _ in waiting:
            ring()
