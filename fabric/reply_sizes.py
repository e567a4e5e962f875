"""What replies took lately, so that the first guess of the room for one fits.

A reply that is larger than the room given for it costs one more round trip. This module never allocates. Read
`fabric/transport.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fabric.transport import Call

_LEARNED_MAX: Final = 4096


class ReplySizes:  # mutable: learns
    """What replies of a model took lately, per model and power of two of the input, so that the first guess fits."""

    __slots__ = ("_sizes", "known")

    def __init__(self) -> None:
        self._sizes: dict[tuple[str, int], int] = {}
        self.known = False  # whether anything was learned: most callers never need to ask

    def guess(self, call: Call) -> int:
        """Bytes to give for the reply."""
        learned = self._sizes.get((call.model, call.body.layout.body_bytes.bit_length()), 0)
        return max(learned, call.reply_bytes)

    def learn(self, call: Call, needed_bytes: int) -> None:
        """A reply needed more than was given. Forgets the oldest model when the table is full."""
        self.known = True
        if len(self._sizes) >= _LEARNED_MAX:
            self._sizes.pop(next(iter(self._sizes)), None)
        self._sizes[call.model, call.body.layout.body_bytes.bit_length()] = needed_bytes
