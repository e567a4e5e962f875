"""Which requests of this client are out, and below which number all are settled.

A request gets its number when it begins and keeps it over all its attempts. `ack_no`, the smallest number that is still
out, travels with every request: a node may forget the answers of all below it. Everything is counted by context
managers, so that no path out of a request (an error, a cancelled await, a generator that is closed) leaves a count
behind. This module never sends. Read `router/workers.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from threading import Lock
    from types import TracebackType


class Accounting:  # mutable: the requests that are out
    """Numbers requests from 1 and keeps those that are `out`, oldest first. `lock` guards it; tickets change it."""

    __slots__ = ("lock", "next_no", "out")

    def __init__(self, lock: Lock) -> None:
        self.lock = lock
        self.next_no = 1
        self.out: dict[int, None] = {}  # keeps the order of insertion, which is the order of the numbers

    @property
    def active(self) -> int:
        """Requests that are out now."""
        return len(self.out)

    @property
    def ack_no(self) -> int:
        """All requests below this number are settled. The lock is held by the caller."""
        for request_no in self.out:
            return request_no
        return self.next_no


class Ticket:  # mutable: entered once
    """One request that is out, from `with` to its end. `request_no` is its number, 0 before."""

    __slots__ = ("_accounting", "request_no")

    def __init__(self, accounting: Accounting) -> None:
        self._accounting = accounting
        self.request_no = 0

    def __enter__(self) -> Self:
        assert self.request_no == 0, "a ticket is for one request"
        accounting = self._accounting
        with accounting.lock:
            self.request_no = accounting.next_no
            accounting.next_no += 1
            accounting.out[self.request_no] = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        accounting = self._accounting
        with accounting.lock:
            del accounting.out[self.request_no]
