"""The life of one request over its attempts: when it may be sent again, how long each attempt may take, how it ends.

    state   | event     | new state | what follows
    READY   | SENT      | OUT       | a worker has it, until the share of the deadline that the attempt got is over
    READY   | NOBODY    | WAITING   | no worker can take it now; looked at again after a while
    READY   | GAVE_UP   | DONE      | the deadline is over, or the caller cancelled
    OUT     | ANSWERED  | DONE      | its reply is there
    OUT     | FAILED    | WAITING   | the fate allows another attempt: back-off
    OUT     | LACKED    | READY     | the worker lacks a resident input: sent again with its content
    OUT     | GAVE_UP   | DONE      | it does not, or the attempts, the budget or the time are used up
    WAITING | WOKE      | READY     |
    WAITING | OVER      | WAITING   | the retry budget is spent: stands in line for it
    WAITING | GAVE_UP   | DONE      |

What a fate allows: `NEVER_RAN` may go anywhere; `RAN` and `UNKNOWN` only if the model is idempotent. A second run on
the same life of a node is prevented by the request's id, and asking there again is the link's affair, not ours. A
request that was *refused* (a full queue) and finds the retry budget spent fails at once: retrying refusals is what
makes a storm. One whose worker was *lost* stands in line for the budget: it brings back load that was there before.

This module never sends, sleeps or picks. Read `router/price.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, NoReturn

from fabric import errors
from fabric.deadline import Deadline
from fabric.errors import (
    DeadlineExceeded,
    ExecutorLost,
    Fate,
    IllegalTransition,
    OverspillError,
    PoisonRequest,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.resident import Referring
    from router.steps import Read
    from router.workers import Worker


class State(IntEnum):  # numbers, because a dict finds those twice as fast, and each request passes three edges
    """Where a request stands."""

    READY = 1
    OUT = 2
    WAITING = 3
    DONE = 4


class Event(IntEnum):
    """What happens to it."""

    SENT = 1
    NOBODY = 2
    ANSWERED = 3
    FAILED = 4
    WOKE = 5
    OVER = 6
    GAVE_UP = 7
    LACKED = 8


_READY, _OUT, _DONE = State.READY, State.OUT, State.DONE
"""To look a member up in its enum costs 50 ns, and each request would do it four times."""

EDGES: dict[State, dict[Event, State]] = {
    State.READY: {Event.SENT: State.OUT, Event.NOBODY: State.WAITING, Event.GAVE_UP: State.DONE},
    State.OUT: {
        Event.ANSWERED: State.DONE,
        Event.FAILED: State.WAITING,
        Event.GAVE_UP: State.DONE,
        Event.LACKED: State.READY,
    },
    State.WAITING: {Event.WOKE: State.READY, Event.OVER: State.WAITING, Event.GAVE_UP: State.DONE},
    State.DONE: {},
}

FINAL = (
    errors.InvalidArgument,
    errors.PoisonRequest,
    errors.ModelFailed,
    errors.DuplicateRequest,
    errors.ArenaFull,
    errors.ReplyTooLarge,
    errors.Cancelled,
    errors.RouterClosed,
    errors.RouterUsedAfterFork,
    errors.IllegalTransition,
)
"""Another worker would give the same answer, or nobody waits for one."""

STUBBORN = (errors.UnknownModel, errors.AccessDenied, errors.VersionMismatch, errors.ConfigError)
"""Another worker may answer differently; the same one will not."""

DEATHS_MAX = 2
"""As on a node, which counts the deaths of its own executors only: a request that killed two, wherever they were, is
not given a third."""
LACKED_MAX = 8
"""Each worker that lacks a resident says so once, since it is sent the content then; more often, something is wrong."""
_GUESS_MARGIN = 4.0
"""An attempt gets at least four times what it is predicted to take: queues make the slowest percent about that."""
_NOBODY_FIRST_S, _NOBODY_MAX_S = 0.001, 0.02
"""While no worker can take a request it is looked at again this often: a link is opened in about a millisecond."""


def may_retry(error: OverspillError, idempotent: bool) -> bool:
    """Whether the rules allow another attempt elsewhere after this failure."""
    if isinstance(error, FINAL):
        return False
    return error.fate is Fate.NEVER_RAN or idempotent


class Attempts:  # mutable: the state of one request
    """The machine of one request. `backoff(n)` gives the seconds to wait after attempt n; `request_no` is its number
    while it is counted as out, else 0; `hint` the caller's guess of its cost, 0 for none; `fresh` are the workers whose
    load was just read for it, None where pages are not read; `beside` a read that it does not wait for; `needs` are the
    residents it refers to, if any."""

    __slots__ = (
        "_attempts_max",
        "_backoff",
        "_deaths",
        "_fates",
        "_lacked",
        "_last",
        "_looks",
        "avoid",
        "beside",
        "count",
        "deadline",
        "fresh",
        "hint",
        "idempotent",
        "model",
        "needs",
        "request_no",
        "state",
    )

    def __init__(
        self, model: str, deadline: Deadline, idempotent: bool, attempts_max: int, backoff: Callable[[int], float]
    ) -> None:
        self.model = model
        self.deadline = deadline
        self.idempotent = idempotent
        self.request_no = 0
        self.hint = 0.0
        self.fresh: tuple[Worker, ...] | None = None
        self.beside: Read | None = None
        self.needs: Referring | None = None
        self.count = 0
        self.avoid: tuple[str, ...] = ()
        self.state = _READY
        self._attempts_max = attempts_max
        self._backoff = backoff
        self._deaths = 0
        self._fates: tuple[Fate, ...] = ()
        self._last: OverspillError | None = None
        self._looks = 0
        self._lacked = 0

    def sent(self, predicted_s: float | None, now: float) -> Deadline:
        """A worker was picked; returns the deadline of this attempt. `predicted_s`: what the answer should take,
        None where nothing was measured yet.

        Only an idempotent request can use what an attempt leaves over, so any other attempt gets all of the time; so
        does the last one, and one of unknown length, because cutting it short would end work that was merely long.
        """
        if self.state is not _READY:  # the table's edge, without the cost of a look-up
            self._go(Event.SENT)
        self.state = _OUT
        self.count += 1
        if not self.idempotent or predicted_s is None or self.count >= self._attempts_max or self.count > 1:
            return self.deadline
        share_s = max(self.deadline.remaining_s(now) / 2, predicted_s * _GUESS_MARGIN)
        return self.deadline.earlier(Deadline(now + share_s))

    def answered(self) -> None:
        """The reply of the attempt that is out is there."""
        if self.state is not _OUT:
            self._go(Event.ANSWERED)
        self.state = _DONE

    def failed(self, error: OverspillError, worker: str, now: float) -> float:
        """The attempt that is out failed; returns the seconds to back off. Raises the final error if that was it."""
        hopeless = worker in self.avoid and isinstance(error, STUBBORN)
        self._last = error
        self._fates += (error.fate,)
        self.avoid += (worker,)
        try:
            if hopeless or not may_retry(error, self.idempotent):
                self.give_up(error, worker, now)
            if isinstance(error, ExecutorLost) and error.fate is Fate.UNKNOWN:
                self._deaths += 1
                if self._deaths >= DEATHS_MAX:
                    told = f"{DEATHS_MAX} executors ended while they ran this request"
                    self.give_up(PoisonRequest(f"{told}, which is refused; change its inputs"), worker, now)
            if self.deadline.expired(now):
                late = error if isinstance(error, DeadlineExceeded) else DeadlineExceeded(str(error))
                self.give_up(late, worker, now)
            delay_s = self._backoff(self.count) if self.count < self._attempts_max else 0.0
            if self.count >= self._attempts_max or delay_s >= self.deadline.remaining_s(now):
                self.give_up(error, worker, now)
        finally:
            error = late = None  # type: ignore[assignment]  # an error's traceback holds this frame
        self._go(Event.FAILED)
        return delay_s

    def lacked(self) -> bool:
        """The worker of the attempt that is out lacks a resident input. True if it is sent again with the content,
        which counts as the same attempt: nothing ran, and nobody failed."""
        self._lacked += 1
        if self.needs is None or self._lacked > LACKED_MAX:
            return False
        self._go(Event.LACKED)
        self.count -= 1
        return True

    def over_budget(self, now: float) -> float:
        """The retry budget is spent. Returns the seconds to stand in line; raises the final error of a refusal."""
        assert self._last is not None, "a retry asks for budget after a failure only"
        if isinstance(self._last, errors.ResourceExhausted) or self.deadline.expired(now):
            self.give_up(self._last, self.avoid[-1], now, "the retry budget is spent")
        self._go(Event.OVER)
        return min(self._look_again_s(), self.deadline.remaining_s(now))

    def nobody(self, reason: str, now: float) -> float:
        """No worker can take the request now. Returns the seconds until the next look; raises when the time is over."""
        if self.deadline.expired(now):
            worker, why = (self.avoid[-1], reason) if self._last is not None else ("", "")
            self.give_up(self._last or Unavailable(reason), worker, now, why)
        self._go(Event.NOBODY)
        return min(self._look_again_s(), self.deadline.remaining_s(now))

    def woke(self) -> None:
        """A wait is over."""
        self._go(Event.WOKE)

    def give_up(self, error: OverspillError, worker: str, now: float, why: str = "") -> NoReturn:
        """Ends the request with an error that tells its story in one sentence."""
        self._go(Event.GAVE_UP)
        if self.count == 0 or (self.count == 1 and not why and error is self._last):
            try:
                raise error
            finally:
                # Else error, traceback and this frame hold each other, and the request's memory. Not by `del`: of an
                # argument mypyc would let go once too often.
                error = None  # type: ignore[assignment]
        if not why and self.deadline.expired(now):
            why = "its time is over"
        times = "attempt" if self.count == 1 else "attempts"
        story = (
            f"{self.model}: {self.count} {times} failed{', and ' + why if why else ''}; the last, on {worker}: {error}"
        )
        raise type(error)(story, self.fate) from self._last

    def forget(self) -> None:
        """The request is over: lets go of the last error, whose traceback holds whoever holds this."""
        self._last = None

    @property
    def fate(self) -> Fate:
        """What became of the request over all its attempts: the worst that one of them left behind."""
        if Fate.UNKNOWN in self._fates:
            return Fate.UNKNOWN
        return Fate.RAN if Fate.RAN in self._fates else Fate.NEVER_RAN

    def _look_again_s(self) -> float:
        self._looks += 1
        return min(_NOBODY_MAX_S, _NOBODY_FIRST_S * 2.0 ** min(self._looks, 10))

    def _go(self, event: Event) -> None:
        found = EDGES[self.state].get(event)
        if found is None:
            raise IllegalTransition(f"a request of {self.model} is {self.state.name} and met {event.name}; report it")
        self.state = found

    def __repr__(self) -> str:
        return f"<Attempts of {self.model}: {self.state.name}, {self.count} sent, avoids {self.avoid or 'nobody'}>"
