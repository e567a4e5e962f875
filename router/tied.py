"""The other workers of an attempt that several of them have: booked at all until one has answered.

Ties and hedges both make one. This module decides nothing: `router/tie.py` and `router/hedge.py` do. Read those.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.dispatch import Attempt
    from router.load import Dispatch
    from router.pick import Picked
    from router.workers import WorkerLink


class Tied:  # mutable: whoever carries the attempt out says who won
    """The other worker of an attempt that was sent to two: it counts as out at both until one has answered. `more` is
    the next one, where it was sent to more."""

    __slots__ = ("began_s", "dispatch", "link", "more", "picked", "won")

    def __init__(self, picked: Picked, link: WorkerLink, dispatch: Dispatch, began_s: float) -> None:
        self.began_s = began_s
        self.picked = picked
        self.link = link
        self.dispatch = dispatch
        self.won = False
        self.more: Tied | None = None

    @classmethod
    def at(cls, picked: Picked, attempt: Attempt) -> Tied:
        """Books the attempt at the other worker too."""
        worker, link = picked.worker, picked.worker.link
        assert link is not None, "a picked worker has a link"
        dispatch = worker.ahead.sent(worker.speed.full_ms(attempt.kind) * attempt.units)
        return cls(picked, link, dispatch, attempt.began_s)

    @classmethod
    def at_all(cls, picked: list[Picked], attempt: Attempt) -> Tied | None:
        """Books the attempt at all of these workers; None for nobody."""
        found: Tied | None = None
        for one in reversed(picked):
            tied = cls.at(one, attempt)
            tied.more, found = found, tied
        return found

    def all(self) -> list[Tied]:
        """This one and those after it."""
        found, one = [], self
        while True:
            found.append(one)
            if one.more is None:
                return found
            one = one.more

    def resolve(self, attempt: Attempt) -> None:
        """One of the workers has answered, or all failed: the others have it no more."""
        attempt.tied = None
        tied = self.all()
        winner = next((one for one in tied if one.won), None)
        for one in tied:
            if one is not winner:
                one.picked.worker.ahead.ended(one.dispatch)
        if winner is not None:
            attempt.picked.worker.ahead.ended(attempt.dispatch)
            attempt.picked, attempt.link, attempt.dispatch = winner.picked, winner.link, winner.dispatch
            attempt.began_s = winner.began_s
