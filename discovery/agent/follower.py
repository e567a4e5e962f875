"""How a watch follows Consul's index, as a table: what is asked next, what an answer means, when all starts again.

An index means something only to the agent that gave it: it goes back when an agent lost its data, and a blocking read
that keeps the old one sees nothing new until its wait is over (4.8 of 5 s, measured). So after any failure, and
whenever the index goes back, reading starts again without one. While servers are gone an agent refuses to block (500
at once) but answers from its cache with the age of the data: that read is made once after each failure. This module
never reads a clock or a socket. Read `discovery/agent/watch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from discovery.agent.pace import FullJitter, TokenBucket
from fabric.errors import IllegalTransition

if TYPE_CHECKING:
    from random import Random

    from discovery.agent.url import ConsulTimes


class State(Enum):
    """What kind of read is out."""

    READING = "reading"
    """Without an index: it answers at once."""
    FOLLOWING = "following"
    """With an index: it answers when something changes, or when its wait is over."""
    SALVAGING = "salvaging"
    """Without an index after a failure: the agent's cache may still have the list."""


class Event(Enum):
    """How it ended."""

    ANSWERED = "answered"
    WENT_BACK = "index went back"
    FAILED = "failed"


class Do(Enum):
    """What follows."""

    APPLY = "apply"
    REFUSE = "refuse"
    RESET = "reset"
    CALM = "calm"
    PACE = "pace"
    BACK_OFF = "back off"


TABLE: dict[State, dict[Event, tuple[State, tuple[Do, ...]]]] = {
    State.READING: {
        Event.ANSWERED: (State.FOLLOWING, (Do.APPLY, Do.PACE)),
        Event.FAILED: (State.READING, (Do.REFUSE, Do.BACK_OFF)),
    },
    State.FOLLOWING: {
        Event.ANSWERED: (State.FOLLOWING, (Do.CALM, Do.APPLY, Do.PACE)),
        Event.WENT_BACK: (State.READING, (Do.RESET, Do.APPLY, Do.PACE)),
        Event.FAILED: (State.SALVAGING, (Do.RESET, Do.REFUSE)),
    },
    State.SALVAGING: {
        Event.ANSWERED: (State.READING, (Do.APPLY, Do.BACK_OFF)),
        Event.FAILED: (State.READING, (Do.REFUSE, Do.BACK_OFF)),
    },
}


@dataclass(frozen=True, slots=True)
class Ask:
    """Read the list after `pause_s`; block on `index` for `wait_s` at most, or not at all where it is 0."""

    pause_s: float
    index: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Apply:
    """Believe the answer, as far as the catalogue's guards let you."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Count a failure; what is known stays."""


Command = Ask | Apply | Refuse
_STORY = 8
_PROOF_WAIT_S = 1.0
"""After a failure one blocking read is kept short, to know soon that all is well again."""


class Follower:  # mutable: the state of one watch
    """Follows one list. `answered` and `failed` return what to do, the next `Ask` last."""

    def __init__(self, times: ConsulTimes, rng: Random, now: float) -> None:
        self._times = times
        self._state = State.READING
        self._index = 0
        self._bucket = TokenBucket(times.read_gap_s, times.read_share, now)
        self._jitter = FullJitter(times.backoff_first_s, times.backoff_max_s, rng)
        self._story: deque[str] = deque(maxlen=_STORY)
        self.resets = 0

    @property
    def state(self) -> State:
        """What kind of read is out."""
        return self._state

    @property
    def proven(self) -> bool:
        """Whether a blocking read went well since the last failure: an agent's memory always answers."""
        return self._jitter.calm

    def begin(self, now: float) -> Ask:
        """The first read."""
        return Ask(self._bucket.take(now), 0, 0.0)

    def answered(self, index: int, cost_s: float, now: float) -> tuple[Command, ...]:
        """The read gave a list at `index`, and `cost_s` of processor time went into it."""
        index = max(1, index)  # an index of 0 would not block
        went_back = self._state is State.FOLLOWING and index < self._index
        self._bucket.cost(cost_s)
        commands = self._handle(Event.WENT_BACK if went_back else Event.ANSWERED, now)
        if self._state is State.FOLLOWING:
            self._index = index
        return commands

    def failed(self, now: float) -> tuple[Command, ...]:
        """The read failed."""
        return self._handle(Event.FAILED, now)

    def ask(self, command: Ask, look_again_s: float | None) -> Ask:
        """The read as it should be made: on the newest index, and no longer than until a doubt can be settled."""
        if self._state is not State.FOLLOWING:
            return command
        wait_s = self._times.wait_s if self.proven else min(self._times.wait_s, _PROOF_WAIT_S)
        if look_again_s is not None:
            wait_s = min(wait_s, look_again_s + 0.01)
        return Ask(command.pause_s, self._index, wait_s)

    def _handle(self, event: Event, now: float) -> tuple[Command, ...]:
        edge = TABLE[self._state].get(event)
        self._story.append(f"{self._state.value}: {event.value}")
        if edge is None:
            raise IllegalTransition(f"a watch cannot take {event.value!r}; last: {', '.join(self._story)}")
        self._state, todo = edge
        commands: list[Command] = []
        pause_s = 0.0
        for do in todo:
            if do is Do.APPLY:
                commands.append(Apply())
            elif do is Do.REFUSE:
                commands.append(Refuse())
            elif do is Do.RESET:
                self._index = 0
                self.resets += 1
            elif do is Do.CALM:
                self._jitter.reset()
            elif do is Do.PACE:
                pause_s = self._bucket.take(now)
            else:
                pause_s = self._jitter.fail()
        return *commands, Ask(pause_s, 0, 0.0)
