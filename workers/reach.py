"""Which cards of a node read each other's memory, as their executors found, and so which way a leg's tensors go.

Nobody is believed to reach a card before it has: until then tensors go both ways, so a first failure costs nothing.
After one they go by way of the host's memory, and some time later both ways again. Read `workers/onward.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from workers.legwords import Way

if TYPE_CHECKING:
    from collections.abc import Iterable

AGAIN_S: Final = 60.0
"""After a failure: whatever it was, a driver or a library may have got over it."""


class Reach:  # mutable: learns
    """The pairs of executors of a node, by number: `cards` are those that have one."""

    def __init__(self, cards: frozenset[int]) -> None:
        self._cards = cards
        self._good: set[tuple[int, int]] = set()
        self._bad: dict[tuple[int, int], float] = {}

    def learn(self, reader: int, source: int, now: float, *, good: bool) -> None:
        """An executor could, or could not, read what lies on another one's card."""
        pair = (reader, source)
        if good:
            self._good.add(pair)
            self._bad.pop(pair, None)
        else:
            self._good.discard(pair)
            self._bad[pair] = now

    def way(self, source: int, readers: Iterable[int], now: float) -> Way:
        """How tensors go from an executor to whichever of these runs a later leg."""
        pairs = [(reader, source) for reader in readers]
        if not {source, *(reader for reader, _ in pairs)} <= self._cards:
            return Way.HOST
        if any(now - self._bad[pair] < AGAIN_S for pair in pairs if pair in self._bad):
            return Way.HOST
        return Way.CARD if self._good.issuperset(pairs) else Way.BOTH
