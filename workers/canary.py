"""Asks an idle executor to run a small kernel whose answer it checks: a broken context must not wait for a request.

The word goes the way of tasks and stands in line with them, so what is answered has passed the executor's own loop, its
context and a copy from the card. While there is work nothing is asked: each run ends with the same question. It ends
nobody: `workers/life.py` tells what it says. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import Final

EVERY_S: Final = 10.0
"""A kernel of 20 us in so long a time is less than a hundred thousandth of a card."""
ANSWER_S: Final = 20.0
"""Other processes may keep a card busy, and a model that is loaded beside may hold the interpreter: longer than the
heartbeat's limit, so that this tells only of the card."""


class Canary:  # mutable: remembers when it asked
    """The questions to one process."""

    __slots__ = ("_asked_s", "_next_s")

    def __init__(self, now: float) -> None:
        self._asked_s = 0.0
        self._next_s = now + EVERY_S

    def is_due(self, now: float, *, idle: bool) -> bool:
        """Whether to ask now. What is not idle is not asked, and starts to count anew."""
        if not idle:
            self._next_s = now + EVERY_S
            return False
        if self._asked_s or now < self._next_s:
            return False
        self._asked_s = now
        return True

    def is_late(self, now: float, *, idle: bool) -> bool:
        """Whether an answer should have come."""
        return idle and self._asked_s > 0 and now - self._asked_s >= ANSWER_S

    def answered(self, now: float) -> None:
        """The answer came, and was right."""
        self._asked_s = 0.0
        self._next_s = now + EVERY_S
