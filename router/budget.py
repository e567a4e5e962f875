"""The retry budget: retries may be a share of the requests that are active, and never much more.

A fixed number of retries for each request multiplies the load exactly when there is too much of it: three retries turn
an overloaded fleet's load into four times that. A share bounds it for all callers together: with 20 %, retries add a
fifth. A retry counts from the moment it is granted, so those that wait in back-off count too; otherwise a thousand
requests that fail at one instant would all see an empty budget and all retry. This module never waits.
Read `router/attempt.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations


class RetryBudget:  # mutable: counts the retries in back-off or under way
    """`ratio` of the active requests, and at least `floor`. Its owner's lock guards it."""

    __slots__ = ("_floor", "_ratio", "granted", "refused", "retrying")

    def __init__(self, ratio: float, floor: int) -> None:
        self._ratio = ratio
        self._floor = floor
        self.retrying = 0
        self.granted = 0
        self.refused = 0

    def take(self, active: int) -> bool:
        """Grants one retry if the budget of `active` requests allows it; `give_back` must follow."""
        if self.retrying >= self._floor + int(self._ratio * active):
            self.refused += 1
            return False
        self.retrying += 1
        self.granted += 1
        return True

    def give_back(self) -> None:
        """A retry that was granted has ended."""
        assert self.retrying > 0, "a retry ended that was never granted"
        self.retrying -= 1

    def __repr__(self) -> str:
        return f"<RetryBudget {self.retrying} retrying, {self.granted} granted, {self.refused} refused>"
