"""Replies that were sent and may be asked for again: the worker's end of "at most once".

A node knows the ids of requests that it ran, and answers one again from the slot that its reply was first written to.
So that slot is not reused before the caller has acknowledged the request, or the node has forgotten it. Where room is
short, they are given up, and their ids are refused from then on; but not those that a caller was told the size of, and
asks for again at once. This module never sends. Read `fabric/rdma/serving.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from fabric.errors import Fate, ResourceExhausted
from fabric.memory.lease import Lease

if TYPE_CHECKING:
    from fabric.transport import Answer

HELD_S = 70.0
"""A node answers again for 60 s, looks every 5 s what is older, and may be copying just then."""
OWED_S = 5.0
"""Whoever was told that a reply needs more room asks again as soon as it has that. One that gave up meanwhile tells of
it only by its next request."""
SPENT_MAX = 4096
"""As many ids as a node itself remembers of one caller."""


class Kept:  # mutable: holds leases
    """The large replies of one caller, by request number."""

    __slots__ = ("_answers", "_owed", "_spent")

    def __init__(self) -> None:
        self._answers: dict[int, tuple[Answer, float]] = {}
        self._owed: dict[int, float] = {}
        self._spent: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def any(self) -> bool:
        """Whether anything is remembered: where not, nobody needs to ask the time for it."""
        return bool(self._answers) or bool(self._spent)

    def keep(self, request_no: int, answer: Answer, now: float) -> None:
        """A reply was made; small ones need no slot, and the node has a copy."""
        if isinstance(answer.memory, Lease):
            self._answers[request_no] = answer, now

    def knows(self, request_no: int) -> bool:
        """Whether a reply was made already: it is here, or was given up."""
        return request_no in self._answers or request_no in self._spent

    def find(self, request_no: int) -> Answer | None:
        """The reply, if it is here. Raises ResourceExhausted for one that was given up."""
        if request_no in self._spent:
            raise ResourceExhausted(
                f"request {request_no} ran, and its reply was given up for others' sake; send fewer large ones at once",
                Fate.RAN,
            )
        self._owed.pop(request_no, None)
        found = self._answers.get(request_no)
        return found[0] if found is not None else None

    def owe(self, request_no: int, now: float) -> None:
        """The caller was told how large the reply is, and asks for it again with room for that."""
        if request_no in self._answers:
            self._owed[request_no] = now

    def acknowledge(self, ack_no: int, now: float) -> None:
        """No request below `ack_no` is asked for again, nor one that is too old."""
        for number, (answer, since_s) in list(self._answers.items()):
            if number < ack_no or since_s <= now - HELD_S:
                del self._answers[number]
                self._owed.pop(number, None)
                _release(answer)
        if self._spent:
            self._spent = {number: None for number in self._spent if number >= ack_no}

    def give_up(self, now: float) -> int:
        """Lets go of all that nobody is about to ask for, because their room is wanted; gives how many there were."""
        spent = [number for number in self._answers if self._owed.get(number, -inf) <= now - OWED_S]
        for number in spent:
            self._spent[number] = None
            self._owed.pop(number, None)
            _release(self._answers.pop(number)[0])
        while len(self._spent) > SPENT_MAX:
            del self._spent[next(iter(self._spent))]
        return len(spent)

    def end(self) -> None:
        """Lets go of all: nobody asks for anything again."""
        self.give_up(inf)


def _release(answer: Answer) -> None:
    if isinstance(answer.memory, Lease):
        answer.memory.release()
