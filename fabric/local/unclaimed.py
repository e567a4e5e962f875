"""Replies that came after their caller had left: their slots stay held while the node may send them once more.

Whoever gave a request up may ask it again with the same id, over this channel or another one, and the node copies a
large reply from where it first wrote it. So that slot is given back only when the request is acknowledged, or when the
node has long forgotten it. Small replies are kept by the executor, and their slots are free at once. This module never
reads frames: `fabric/local/pooled.py` and `fabric/local/mux.py` do. Read `fabric/local/channel.py` next.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from fabric.message import SMALL_BODY_BYTES

if TYPE_CHECKING:
    from fabric.memory.lease import Lease

HELD_S = 70.0
"""A node answers again for 60 s, looks every 5 s what is older, and may be copying just then."""


class Unclaimed:  # mutable: holds leases
    """Leases of late replies by request number. `any` says whether there are some: most callers never need to ask."""

    __slots__ = ("_held", "_lock", "any")

    def __init__(self) -> None:
        self._lock = Lock()
        self._held: list[tuple[int, float, Lease]] = []
        self.any = False

    def keep(self, request_no: int, lease: Lease | None, reply_bytes: int, now: float) -> None:
        """The final frame of a request that was given up has come, with a reply of `reply_bytes` in this lease. Whether
        somebody writes to it is not looked at here: it is to be settled first."""
        if lease is None:
            return
        if reply_bytes < SMALL_BODY_BYTES:
            lease.release()
            return
        with self._lock:
            self._held.append((request_no, now, lease))
            self.any = True

    def acknowledge(self, ack_no: int, now: float) -> None:
        """No request below `ack_no` is asked again."""
        with self._lock:
            held, self._held = self._held, []
            for request_no, since_s, lease in held:
                if request_no < ack_no or since_s <= now - HELD_S:
                    lease.release()
                else:
                    self._held.append((request_no, since_s, lease))
            self.any = bool(self._held)
