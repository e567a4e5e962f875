"""The second worker of an attempt that two of them have: booked at both until one has answered.

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
    """The other worker of an attempt that was sent to two: it counts as out at both until one has answered."""

    __slots__ = ("began_s", "dispatch", "link", "picked", "won")

    def __init__(self, picked: Picked, link: WorkerLink, dispatch: Dispatch, began_s: float) -> None:
        self.began_s = began_s
        self.picked = picked
        self.link = link
        self.dispatch = dispatch
        self.won = False

    @classmethod
    def at(cls, picked: Picked, attempt: Attempt) -> Tied:
        """Books the attempt at the other worker too."""
        worker, link = picked.worker, picked.worker.link
        assert link is not None, "a picked worker has a link"
        dispatch = worker.ahead.sent(worker.speed.full_ms(attempt.kind) * attempt.units)
        return cls(picked, link, dispatch, attempt.began_s)
