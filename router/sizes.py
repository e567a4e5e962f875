"""How large the reply of a request will be, from those before it: the slot it gets must hold it, or costs a round trip.

Too large costs nothing but address space; too small costs one more round trip, never a second run. So the guess is the
largest seen lately. This module never leases. Read `router/dispatch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

_UNKNOWN_MIN_BYTES = 64 * 1024
"""Small replies are copied below this size anyway."""
_UNKNOWN_MAX_BYTES = 4 << 20
"""A reply as large as its request is common (one row out for one row in);
beyond this a guess would starve the arena."""


class ReplySizes:  # mutable: learns
    """Reply bytes per (model, size bucket of the body). Its owner's lock guards it."""

    __slots__ = ("_largest",)

    def __init__(self) -> None:
        self._largest: dict[tuple[str, int], int] = {}

    def guess(self, model: str, bucket: int, body_bytes: int) -> int:
        """Bytes that the reply will most likely not exceed."""
        found = self._largest.get((model, bucket))
        if found is not None:
            return found
        return min(max(_UNKNOWN_MIN_BYTES, body_bytes), _UNKNOWN_MAX_BYTES)

    def learn(self, model: str, bucket: int, reply_bytes: int) -> None:
        """Takes in one reply; the largest fades by a sixty-fourth with each smaller one."""
        key = (model, bucket)
        largest = self._largest.get(key, 0)
        self._largest[key] = max(reply_bytes, largest - (largest >> 6))
