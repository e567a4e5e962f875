"""Which requests of this client are out, and below which number all are settled.

A request gets its number when it begins and keeps it over all its attempts. `ack_no`, the smallest number that is still
out, travels with every request: a node may forget the answers of all below it. A request enters and leaves in steps
that hold the router's lock anyway, and whatever ends it early (an error, a cancelled await, a generator that is closed)
passes the `finally` of `Core.life`, so that no count stays behind. This module never sends. Read `router/workers.py`
next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations


class Accounting:  # mutable: the requests that are out
    """Numbers requests from 1 and keeps those that are `out`, oldest first. Its owner's lock guards it."""

    __slots__ = ("next_no", "out")

    def __init__(self) -> None:
        self.next_no = 1
        self.out: dict[int, None] = {}  # keeps the order of insertion, which is the order of the numbers

    @property
    def active(self) -> int:
        """Requests that are out now."""
        return len(self.out)

    @property
    def ack_no(self) -> int:
        """All requests below this number are settled."""
        for request_no in self.out:
            return request_no
        return self.next_no

    def enter(self) -> int:
        """The number of one more request, which is out until it leaves."""
        request_no = self.next_no
        self.next_no = request_no + 1
        self.out[request_no] = None
        return request_no

    def leave(self, request_no: int) -> None:
        """A request came to its end. The second time does nothing: an interrupt may fall between end and note."""
        self.out.pop(request_no, None)
