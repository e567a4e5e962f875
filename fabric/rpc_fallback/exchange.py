"""One caller's requests in the port: each id is asked of the node once, however often and over whatever it comes.

A lane that breaks is no reason to run anything again: the caller repeats the id over the stream, and finds it here,
running or answered. States of an id, with the number of its newest asker:

    RUNNING     the first asker waits for the node; later ones wait here
    DELIVERING  its newest asker sends the answer; later ones wait here
    KEPT        the delivery failed; the next asker gets the answer

and it is forgotten once an answer arrived, `ack_no` passes it, or after `KEPT_S`. The node would answer a forgotten id
again from the slot that its reply lay in, which others use by then: until it is acknowledged, such an id is refused.
Only the newest asker gets the answer; older ones are told that they were superseded. This module never talks to the
node or a socket. Read `fabric/rpc_fallback/peers.py` next.
"""

from __future__ import annotations

import time
from enum import Enum
from threading import Condition, Lock
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.message import RequestId
    from fabric.rpc_fallback.wire import Outcome

KEPT_S = 60.0
"""As long as a node itself keeps an answer."""
KEPT_MAX = 64
SPENT_MAX = 4096
"""As many finished ids as a node itself remembers of one caller."""


class State(Enum):
    """Where an id stands; see the module's table."""

    RUNNING = "running"
    DELIVERING = "delivering"
    KEPT = "kept"


class _Entry:  # mutable: one id, changed under the exchange's lock
    __slots__ = ("asker", "kept_until_s", "outcome", "state")

    def __init__(self) -> None:
        self.asker = 1
        self.state = State.RUNNING
        self.outcome: Outcome | None = None
        self.kept_until_s = 0.0


class Exchange:  # mutable: the table of one caller's ids
    """The requests of one caller. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Most ids come once: they take the plain lock, whose `with` costs a tenth of a condition's.
        self._lock = Lock()
        self._changed = Condition(self._lock)
        self._entries: dict[RequestId, _Entry] = {}
        self._spent: dict[int, None] = {}

    def answer(self, request: RequestId, ack_no: int, run: Callable[[], Outcome], deadline: Deadline) -> Outcome | None:
        """The outcome for one asker, who then calls `delivered` or `undelivered`; None when a newer one came.

        `run` asks the node, and is called only if the id is not here yet. Raises DeadlineExceeded, or ResourceExhausted
        for an id whose answer was given up.
        """
        with self._lock:
            if self._spent:
                self._check_spent(request.request_no, ack_no)
            entry = self._entries.get(request)
            if entry is None:
                entry = self._entries[request] = _Entry()
                asker = 1
            else:
                entry.asker += 1
                asker = entry.asker
                self._changed.notify_all()  # the asker before this one is superseded
            self._forget(ack_no)
        if asker == 1:
            outcome = run()
            with self._lock:
                entry.outcome = outcome
                if entry.asker == 1:
                    entry.state = State.DELIVERING
                    return outcome
                entry.state, entry.kept_until_s = State.KEPT, self._clock() + KEPT_S
                self._changed.notify_all()
                return None
        return self._wait(request, entry, asker, deadline, run)

    def delivered(self, request: RequestId, outcome: Outcome) -> None:
        """This outcome arrived: its memory returns. Does nothing for one that is not the id's own."""
        with self._lock:
            entry = self._entries.get(request)
            if entry is not None and entry.outcome is outcome:
                del self._entries[request]
                if entry.asker > 1:
                    self._changed.notify_all()
        outcome.release()

    def undelivered(self, request: RequestId, outcome: Outcome) -> None:
        """This outcome did not arrive: the next asker may have it, for a while."""
        with self._lock:
            entry = self._entries.get(request)
            if entry is not None and entry.outcome is outcome:
                entry.state, entry.kept_until_s = State.KEPT, self._clock() + KEPT_S
                self._changed.notify_all()

    def running(self, request: RequestId) -> bool:
        """Whether the node is being asked for it now."""
        entry = self._entries.get(request)
        return entry is not None and entry.state is State.RUNNING

    def busy(self) -> bool:
        """Whether any id is running or being delivered."""
        with self._lock:
            return any(entry.state is not State.KEPT for entry in self._entries.values())

    def forget_kept(self) -> int:
        """Gives up every kept answer, because its memory is wanted. Returns how many there were."""
        with self._lock:
            return self._drop([key for key, entry in self._entries.items() if entry.state is State.KEPT])

    def _wait(
        self, request: RequestId, entry: _Entry, asker: int, deadline: Deadline, run: Callable[[], Outcome]
    ) -> Outcome | None:
        with self._changed:
            while self._entries.get(request) is entry:
                if entry.asker != asker:
                    return None
                if entry.state is State.KEPT:
                    entry.state = State.DELIVERING
                    return entry.outcome
                remaining_s = deadline.remaining_s(self._clock())
                if not remaining_s:
                    raise DeadlineExceeded("the time given with the request is over, and it is still running; wait")
                self._changed.wait(remaining_s)
        # It was delivered to somebody else after all: the node knows the id, and answers it again.
        return self.answer(request, 0, run, deadline)

    def _forget(self, ack_no: int) -> None:
        """Drops what is acknowledged, too old, or too much. There is rarely anything."""
        if len(self._entries) <= 1:
            return
        kept = [(key, entry) for key, entry in self._entries.items() if entry.state is State.KEPT]
        if kept:
            now = self._clock()
            surplus = max(0, len(kept) - KEPT_MAX)
            self._drop(
                [
                    key
                    for place, (key, entry) in enumerate(kept)
                    if place < surplus or key.request_no < ack_no or entry.kept_until_s < now
                ],
                ack_no,
            )

    def _check_spent(self, request_no: int, ack_no: int) -> None:
        self._spent = {number: None for number in self._spent if number >= ack_no}
        if request_no in self._spent:
            raise ResourceExhausted(
                f"request {request_no} ran, and its reply was given up for others' sake; send fewer large ones at once",
                Fate.RAN,
            )

    def _drop(self, keys: list[RequestId], ack_no: int = 0) -> int:
        for key in keys:
            outcome = self._entries.pop(key).outcome
            if outcome is not None:
                if outcome.lease is not None and key.request_no >= ack_no:
                    self._spent[key.request_no] = None
                outcome.release()
        while len(self._spent) > SPENT_MAX:
            del self._spent[next(iter(self._spent))]
        return len(keys)
