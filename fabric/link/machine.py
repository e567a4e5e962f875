"""The failover machine of one link: the table, and what a table cannot say.

That is: which wires there are, missed pings, back-off, and the hold-down that keeps a flapping wire from taking the
requests back more than once in 5 s. Going *away* from a dead wire is never delayed. An event without an edge raises
with the last transitions. This module never waits, opens or closes: `fabric/link/wiring.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fabric.errors import IllegalTransition
from fabric.link.table import TABLE, Do, Event, Role, State

if TYPE_CHECKING:
    from random import Random

    from fabric.link.config import LinkTimes

STORY_MAX = 32


@dataclass(frozen=True, slots=True)
class Command:
    """One thing to do; `delay_s` is the time until a scheduled event."""

    do: Do
    delay_s: float = 0.0


_BOTH_OPEN = frozenset({State.PREFERRED_LIVE, State.SUSPECT, State.STANDBY})
_ON_PREFERRED = frozenset({State.PREFERRED_ONLY, State.PREFERRED_LIVE})


class LinkMachine:  # mutable: it is the state
    """One link's state. `preferred` and `fallback` say which wires there are; `random` spreads the retries."""

    def __init__(self, times: LinkTimes, random: Random, *, preferred: bool, fallback: bool) -> None:
        assert preferred or fallback, "a link has a wire"
        self.times = times
        self._random = random
        self._has = {Role.PREFERRED: preferred, Role.FALLBACK: fallback}
        self.state = State.DOWN
        self.missed = dict.fromkeys(Role, 0)
        self._answered = dict.fromkeys(Role, 0)
        self._failures = dict.fromkeys(Role, 0)
        self._hold_down_s = times.hold_down_s
        self._left_at = float("-inf")
        self._hold_until = float("-inf")
        self._story: deque[str] = deque(maxlen=STORY_MAX)
        self.changes = 0

    @property
    def story(self) -> tuple[str, ...]:
        """The last transitions, oldest first."""
        return tuple(self._story)

    def start(self, now: float) -> tuple[Command, ...]:
        """Begins to connect."""
        return self.handle(Event.PROBE_DUE, now)

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Takes an event at `now` (monotonic seconds); returns what to do, in order.

        Raises IllegalTransition, which tells the last transitions, and leaves everything as it was.
        """
        edge = TABLE[self.state].get(event)
        if edge is None:
            told = "; ".join(self._story) or "nothing before"
            raise IllegalTransition(f"a link that is {self.state.value} met {event.value!r}: {told}; report this bug")
        state, dos = edge
        if event is Event.HOLD_OVER and self.state is State.STANDBY and now < self._hold_until:
            return (Command(Do.SCHEDULE_HOLD, self._hold_until - now),)
        self._story.append(f"{now:.3f} {self.state.value} --{event.value}--> {state.value}")
        before, self.state = self.state, state
        self._count(event, before, now)
        commands: list[Command] = []
        for do in dos:
            commands += self._carried(do, now)
        return tuple(commands)

    def ping_answered(self, role: Role, now: float) -> tuple[Command, ...]:
        """A ping of this wire was answered."""
        doubted = self.missed[role] >= self.times.suspect_missed or self._answered[role] > 0
        self.missed[role] = 0
        if not doubted and not (role is Role.PREFERRED and self.state is State.SUSPECT):
            return ()
        self._answered[role] += 1
        if self._answered[role] < self.times.good_pings:
            return ()
        self._answered[role] = 0
        if role is Role.PREFERRED and self.state in _BOTH_OPEN | _ON_PREFERRED:
            return self.handle(Event.PREFERRED_ANSWERED, now)
        return ()

    def ping_missed(self, role: Role, now: float, *, patient: bool = True) -> tuple[Command, ...]:
        """A ping of this wire was not answered in time. `patient`: requests are out that only this node may finish, so
        that the last wire is given up later than one that has another beside it."""
        self.missed[role] += 1
        self._answered[role] = 0
        missed, times = self.missed[role], self.times
        limit = times.last_missed if patient and self.state not in _BOTH_OPEN else times.silent_missed
        if role is Role.PREFERRED:
            if self.state not in _BOTH_OPEN | _ON_PREFERRED:
                return ()
            if missed >= limit:
                return self.handle(Event.PREFERRED_SILENT, now)
            return self.handle(Event.PREFERRED_DOUBTED, now) if missed == times.suspect_missed else ()
        used_or_ready = _BOTH_OPEN | {State.FENCING, State.FALLBACK_LIVE, State.PROBING}
        return self.handle(Event.FALLBACK_SILENT, now) if missed >= limit and self.state in used_or_ready else ()

    def _count(self, event: Event, before: State, now: float) -> None:
        for role, opened, failed in (
            (Role.PREFERRED, Event.PREFERRED_OPENED, Event.PREFERRED_FAILED),
            (Role.FALLBACK, Event.FALLBACK_OPENED, Event.FALLBACK_FAILED),
        ):
            if event is opened:
                self.missed[role] = self._answered[role] = 0
                if role is Role.FALLBACK:
                    self._failures[role] = 0
            elif event is failed:
                self._failures[role] += 1
        if self.state in _ON_PREFERRED:
            self._failures[Role.PREFERRED] = 0
        elif before is State.STANDBY and self.state is State.FENCING:
            # It opened, and broke before it was good for anything: one that always does is not to be opened in a storm.
            self._failures[Role.PREFERRED] += 1
        if before in _ON_PREFERRED and self.state not in _ON_PREFERRED:
            self._hold(now)
        elif before is not State.STANDBY and self.state is State.STANDBY and self._left_at > float("-inf"):
            # It has to stay good while it stands by: one that flaps would take the requests back just before it goes.
            self._hold_until = max(self._hold_until, now + self.times.hold_down_s)

    def _hold(self, now: float) -> None:
        """The requests left the preferred wire: they do not come back before the hold-down is over."""
        times = self.times
        flapped = now - self._left_at < times.flap_window_s
        self._hold_down_s = min(2 * self._hold_down_s, times.hold_down_max_s) if flapped else times.hold_down_s
        self._left_at = now
        self._hold_until = now + self._hold_down_s

    def _carried(self, do: Do, now: float) -> tuple[Command, ...]:
        """The command with its delay; for a wire that there is not, what follows from that at once."""
        if do in {Do.USE_PREFERRED, Do.USE_FALLBACK}:
            self.changes += 1
        if do is Do.OPEN_PREFERRED and not self._has[Role.PREFERRED]:
            return self.handle(Event.PREFERRED_FAILED, now)
        if do is Do.OPEN_FALLBACK and not self._has[Role.FALLBACK]:
            return self.handle(Event.FALLBACK_FAILED, now)
        if do is Do.SCHEDULE_RETRY:
            return (Command(do, self._backoff_s(Role.FALLBACK)),) if self._has[Role.FALLBACK] else ()
        if do is Do.SCHEDULE_PROBE:
            if self.state is State.DOWN:  # any wire would do
                return (Command(do, self._backoff_s(Role.FALLBACK if self._has[Role.FALLBACK] else Role.PREFERRED)),)
            return (Command(do, self._backoff_s(Role.PREFERRED)),) if self._has[Role.PREFERRED] else ()
        if do is Do.SCHEDULE_HOLD:
            return (Command(do, max(0.0, self._hold_until - now)),)
        return (Command(do),)

    def _backoff_s(self, role: Role) -> float:
        """Exponential, with up to a half taken off so that many clients of one node do not come back together."""
        times = self.times
        whole_s = min(times.backoff_s * 2.0 ** min(self._failures[role], 16), times.backoff_max_s)
        return whole_s * self._random.uniform(0.5, 1.0)
