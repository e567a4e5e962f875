"""What a connection posts beside frames and bodies: reads of the peer's load page, and writes of nothing as a pulse.

All methods are called under the connection's lock. This module never decides when: `fabric/rdma/pulse.py` and whoever
reads do. Read `fabric/rdma/connection.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import ResourceExhausted
from fabric.rdma.pairs import PULSE_DONE, READ_DONE, SCRATCH_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.rdma.heads import RegionNote
    from fabric.rdma.pairs import Pairs
    from fabric.rdma.pulse import Pulse


class Asides:  # mutable: one read and one pulse may be out
    """The reads and the pulse of one connection. `peer` is a region of the peer's, once it is known."""

    __slots__ = ("_pairs", "_read", "peer", "pulse")

    def __init__(self, pairs: Pairs, pulse: Pulse) -> None:
        self._pairs, self.pulse = pairs, pulse
        self.peer: RegionNote | None = None
        self._read: tuple[int, int, Callable[[bytes], None]] | None = None

    def read(self, note: RegionNote, parts: tuple[tuple[int, int], ...], done: Callable[[bytes], None]) -> None:
        """Reads (offset, bytes) parts of a region, in this order. Raises ResourceExhausted while another is out."""
        size = sum(nbytes for _, nbytes in parts)
        assert size <= SCRATCH_BYTES, "read into scratch memory"
        if self._read is not None:
            raise ResourceExhausted("a read of the same peer is on its way; wait for that")
        self._read = (len(parts) - 1, size, done)
        self._pairs.post_reads(note.rkey, tuple((note.base + offset, nbytes) for offset, nbytes in parts))

    def ask(self, now: float) -> None:
        """Has the peer's NIC acknowledge something. Raises Unavailable when ours takes nothing."""
        assert self.peer is not None, "known before the connection lives"
        if not self.pulse.asked_already:
            self._pairs.post_pulse(self.peer.base, self.peer.rkey)
            self.pulse.asked(now)

    def settle(self, kind: int, number: int, now: float) -> None:
        """One of them is done."""
        if kind == PULSE_DONE:
            self.pulse.answered(now)
        elif kind == READ_DONE:
            reading = self._read
            if reading is not None and number == reading[0]:
                self._read = None
                reading[2](self._pairs.scratch(reading[1]))
