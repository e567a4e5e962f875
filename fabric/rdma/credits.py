"""Credits: the right to post one send, so that "receiver not ready" cannot happen by design.

Each end posts a fixed number of receives before the connection lives, and tells in every message how many it has posted
again since. The difference between what was sent and what was told is never larger than the depth. The last few are
kept for messages that give credit themselves, so that two full ends can always talk. This module never posts. Read
`fabric/rdma/outbox.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import Final

from fabric.errors import ProtocolError

RESERVED: Final = 3
"""Kept for CREDIT, RELEASE and BYE: one of each may be under way."""
_WRAP: Final = 1 << 32


class Credits:  # mutable: counts
    """One direction of one queue pair, as one end sees both ways of it. `depth` is the number of receives that each
    side posted at the start."""

    __slots__ = ("_arrived", "_returned", "_sent", "_told", "depth")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._sent = self._returned = self._arrived = self._told = 0

    @property
    def out(self) -> int:
        """Sends that the peer has not given credit for."""
        return self._sent - self._returned

    def may_send(self, *, control: bool = False) -> bool:
        """Whether there is credit for one more."""
        return self.out < (self.depth if control else self.depth - RESERVED)

    def sent(self) -> None:
        """One was posted."""
        assert self.out < self.depth, "a send without credit"
        self._sent += 1

    def returned(self, total: int) -> None:
        """The peer told its total (of 32 bits). Raises ProtocolError for more than was ever sent.

        A total from before the last one says nothing new: each head tells of both pairs, and a head on one pair may be
        overtaken by a later one on the other.
        """
        more = (total - self._returned) % _WRAP
        if more >= _WRAP // 2 and _WRAP - more <= self._returned:
            return
        if more > self.out:
            raise ProtocolError("the peer gave credit for messages that were not sent; the connection is closed")
        self._returned += more

    def arrived(self) -> None:
        """One came, and its receive is posted again."""
        self._arrived += 1

    @property
    def owed(self) -> int:
        """Receives posted again that the peer was not told of."""
        return self._arrived - self._told

    @property
    def due(self) -> bool:
        """Whether the peer should be told now, though there is nothing else to say."""
        return self.owed * 2 >= self.depth

    def tell(self) -> int:
        """The total for the next message's head, as it travels."""
        self._told = self._arrived
        return self._arrived % _WRAP
