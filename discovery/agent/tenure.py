"""How a node holds its entry in Consul, as a table: heartbeats, what to do when the entry is lost, when to give way.

An agent forgets: restarted without its data it knows neither entry nor check, and a beat tells so. Then the entry is
made again at once, but only after a look at who holds the id by now: a new life of the node takes over for good, and
the old one never fights for its place. The whole entry is written again from time to time, which heals what was lost
without a word. This module never reads a clock or a socket. Read `discovery/agent/registration.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING

from fabric.errors import IllegalTransition

if TYPE_CHECKING:
    from random import Random

    from discovery.agent.url import ConsulTimes


class State(Enum):
    """How things stand with the entry."""

    HELD = "held"
    LOOKING = "looking"
    ENTERING = "entering"
    PROVING = "proving"
    """Just made again: a check that is still unknown is no reason to make it once more at once, or an agent that
    always says so (two behind one balancer) would be asked without end."""
    SUPERSEDED = "superseded"


class Event(Enum):
    """What happened."""

    DUE = "beat due"
    REFRESH_DUE = "refresh due"
    PASSED = "passed"
    UNKNOWN = "check unknown"
    MINE = "entry is mine"
    NOBODYS = "entry is nobody's"
    OTHERS = "entry is another life's"
    ENTERED = "entered"
    FAILED = "failed"


class Do(Enum):
    """What follows."""

    PASS = "pass"  # noqa: S105 - a heartbeat's word
    LOOK = "look"
    ENTER = "enter"
    COUNT = "count a re-registration"
    REST = "rest until the next beat"
    RETRY = "try again"
    GIVE_WAY = "give way"


TABLE: dict[State, dict[Event, tuple[State, tuple[Do, ...]]]] = {
    State.HELD: {
        Event.DUE: (State.HELD, (Do.PASS,)),
        Event.REFRESH_DUE: (State.LOOKING, (Do.LOOK,)),
        Event.PASSED: (State.HELD, (Do.REST,)),
        Event.UNKNOWN: (State.LOOKING, (Do.LOOK,)),
        Event.FAILED: (State.HELD, (Do.RETRY,)),
    },
    State.LOOKING: {
        Event.MINE: (State.ENTERING, (Do.ENTER,)),
        Event.NOBODYS: (State.ENTERING, (Do.COUNT, Do.ENTER)),
        Event.OTHERS: (State.SUPERSEDED, (Do.GIVE_WAY,)),
        Event.FAILED: (State.HELD, (Do.RETRY,)),
    },
    State.ENTERING: {
        Event.ENTERED: (State.PROVING, (Do.PASS,)),
        Event.FAILED: (State.HELD, (Do.RETRY,)),
    },
    State.PROVING: {
        Event.PASSED: (State.HELD, (Do.REST,)),
        Event.UNKNOWN: (State.HELD, (Do.RETRY,)),
        Event.FAILED: (State.HELD, (Do.RETRY,)),
    },
    State.SUPERSEDED: {},
}

_STORY = 8


class Tenure:  # mutable: the state of one entry
    """Holds one entry, which was just made. `due_s` says when `beat` is to be called."""

    def __init__(self, times: ConsulTimes, rng: Random, now: float) -> None:
        self._times, self._rng = times, rng
        self._state = State.HELD
        self._story: deque[str] = deque(maxlen=_STORY)
        self.reentries = 0
        self.due_s = now
        self._refresh_s = now + times.refresh_s
        self._rest(now)

    @property
    def state(self) -> State:
        """How things stand."""
        return self._state

    def beat(self, now: float) -> tuple[Do, ...]:
        """It is time for a beat, or for a whole registration."""
        if self._state is State.SUPERSEDED:
            return ()
        if now < self._refresh_s:
            return self.handle(Event.DUE, now)
        self._refresh_s = now + self._times.refresh_s
        return self.handle(Event.REFRESH_DUE, now)

    def handle(self, event: Event, now: float) -> tuple[Do, ...]:
        """Takes what happened; returns what is to be asked of the agent."""
        edge = TABLE[self._state].get(event)
        self._story.append(f"{self._state.value}: {event.value}")
        if edge is None:
            raise IllegalTransition(f"an entry cannot take {event.value!r}; last: {', '.join(self._story)}")
        self._state, todo = edge
        asked: list[Do] = []
        for do in todo:
            if do is Do.COUNT:
                self.reentries += 1
            elif do is Do.REST:
                self._rest(now)
            elif do is Do.RETRY:
                # Spread over one interval: those who lost the same agent do not come back at the same moment.
                self.due_s = now + self._rng.uniform(0.0, self._times.heartbeat_s)
            else:
                asked.append(do)
        return tuple(asked)

    def _rest(self, now: float) -> None:
        self.due_s = now + self._times.heartbeat_s * self._rng.uniform(0.8, 1.0)
