"""How long each model takes here, by size of its inputs: learned from every run, asked for every request.

Unknown is not zero: a model that never ran is taken to be slow, so that a node does not promise what it cannot know.
This module never decides who runs what: `workers/admission.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

UNKNOWN_US = 1000
"""What a model that never ran is taken to need: a millisecond, where small networks and small plans lie."""
WEIGHT = 0.2
"""Of the newest run: about the last ten runs count."""


class ModelSpeed:  # mutable: a running estimate
    """The run times of one model, in microseconds. Sizes count by powers of two."""

    __slots__ = ("_any_us", "_by_size", "slowest_us")

    def __init__(self) -> None:
        self._by_size: dict[int, float] = {}  # at most 41: a body has 2^40 bytes at most
        self._any_us: float | None = None
        self.slowest_us = 0
        """The slowest run seen, warm-up included; 0 before the first."""

    def estimate_us(self, body_bytes: int) -> int:
        """What a request of this size is expected to take: by its size, or by any, or `UNKNOWN_US`."""
        known = self._by_size.get(body_bytes.bit_length(), self._any_us)
        return UNKNOWN_US if known is None else int(known)

    def known_us(self, body_bytes: int) -> int:
        """The same, but 0 before the first run."""
        return 0 if self._any_us is None else self.estimate_us(body_bytes)

    def ran(self, body_bytes: int, compute_us: int) -> None:
        """Learns from a run."""
        size = body_bytes.bit_length()
        known = self._by_size.get(size)
        self._by_size[size] = compute_us if known is None else known + WEIGHT * (compute_us - known)
        self.warmed(compute_us)

    def ran_in_batch(self, body_bytes: int, share_us: int, compute_us: int) -> None:
        """Learns from a run of several requests, of which this one's items were a share."""
        self.ran(body_bytes, share_us)
        self.slowest_us = max(self.slowest_us, compute_us)

    def warmed(self, compute_us: int) -> None:
        """Learns from a warm-up run, whose size says nothing about requests."""
        self._any_us = compute_us if self._any_us is None else self._any_us + WEIGHT * (compute_us - self._any_us)
        self.slowest_us = max(self.slowest_us, compute_us)

    def __repr__(self) -> str:
        return f"<ModelSpeed {self._any_us} us, slowest {self.slowest_us} us, {len(self._by_size)} sizes>"
