"""What happens to executors: they start, warm up, work, die, and are followed by a new generation.

An executor that ended, hung, or was stopped is killed if need be, reaped, and only then are its writers fenced: until
the kernel says that the process is gone, it may still write to a tenant's memory. One with a device is followed only
when the device's memory is free, or at once by its standby. Crash loops are slowed down, a device that keeps breaking
executors is put into quarantine, one that the driver calls bad is barred, and a request that was running at two deaths
is refused as poison. This module never signals a process and reads no clock: `workers/shell.py` carries its commands
out. Read `workers/vitals.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from enum import Enum

from fabric.errors import IllegalTransition, PoisonRequest

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
"""An executor that cannot live is tried this often: the recovery time that the published system reports."""
QUARANTINE_FIRST_S = 30.0
QUARANTINE_MAX_S = 600.0
QUARANTINE_WINDOW_S = 60.0
QUARANTINE_FAULTS = 5
"""So many deaths in a window put a device into quarantine: it is tried again after a pause that doubles each time."""
STABLE_S = 30.0
"""An executor that was ready this long ends the count of crashes in a row."""
START_TIMEOUT_S = 300.0
"""From start to ready. Loading a large network and warming it up takes a minute or two."""
DEATHS_MAX = 2
SUSPECTS_MAX = 4096
STORY_EDGES = 32


class ExecutorState(Enum):
    """Where an executor's process is in its life."""

    DOWN = "down"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    FENCING = "fencing"
    CLEARING = "clearing"
    BACKOFF = "backoff"
    BARRING = "barring"
    BARRED = "barred"
    STOPPING = "stopping"
    GONE = "gone"


class ExecutorEvent(Enum):
    """What an executor's shell has seen."""

    START_ASKED = "start asked"
    PROCESS_SPOKE = "process spoke"
    MODELS_WARM = "models warm"
    FOUND_STUCK = "found stuck"
    PROCESS_REAPED = "process reaped"
    WARM_STANDBY = "lost, and its standby is warm"
    BARE_STANDBY = "lost, and its standby has a context"
    MEMORY_FREE = "device memory is free"
    MEMORY_HELD = "device memory stays held"
    DEVICE_BAD = "device is bad"
    DEVICE_GOOD = "device may be good"
    BACKOFF_OVER = "back-off over"
    STOP_ASKED = "stop asked"


class Command(Enum):
    """What the shell must do."""

    SPAWN = "spawn a new generation"
    OPEN = "give it work"
    SHUT = "give it no more work"
    KILL = "kill the process"
    FENCE = "its writers are fenced: settle what it had in hand"
    CLEAR = "wait until the device memory that it held is free"
    PART = "kill the process, and settle what it had in hand once it is reaped"
    PROMOTE = "put the standby into its place"
    BAR = "leave the device alone, and look at it from time to time"
    WAIT = "come back after the back-off"
    ASK_EXIT = "ask it to end after its tasks"


_S, _E, _C = ExecutorState, ExecutorEvent, Command
TABLE: dict[ExecutorState, dict[ExecutorEvent, tuple[ExecutorState, tuple[Command, ...]]]] = {
    _S.DOWN: {
        _E.START_ASKED: (_S.STARTING, (_C.SPAWN,)),
        _E.DEVICE_BAD: (_S.BARRED, (_C.BAR,)),
        _E.STOP_ASKED: (_S.GONE, ()),
    },
    _S.STARTING: {
        _E.PROCESS_SPOKE: (_S.WARMING, ()),
        _E.FOUND_STUCK: (_S.FENCING, (_C.KILL,)),
        _E.PROCESS_REAPED: (_S.CLEARING, (_C.FENCE, _C.CLEAR)),
        _E.DEVICE_BAD: (_S.BARRING, (_C.KILL,)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.KILL,)),
    },
    _S.WARMING: {
        _E.PROCESS_SPOKE: (_S.WARMING, ()),
        _E.MODELS_WARM: (_S.READY, (_C.OPEN,)),
        _E.FOUND_STUCK: (_S.FENCING, (_C.KILL,)),
        _E.PROCESS_REAPED: (_S.CLEARING, (_C.FENCE, _C.CLEAR)),
        _E.DEVICE_BAD: (_S.BARRING, (_C.KILL,)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.KILL,)),
    },
    _S.READY: {
        _E.FOUND_STUCK: (_S.FENCING, (_C.SHUT, _C.KILL)),
        _E.PROCESS_REAPED: (_S.CLEARING, (_C.SHUT, _C.FENCE, _C.CLEAR)),
        # The new one takes work before the old one is reaped; what the old one had in hand waits for that.
        _E.WARM_STANDBY: (_S.READY, (_C.SHUT, _C.PART, _C.PROMOTE, _C.OPEN)),
        _E.BARE_STANDBY: (_S.WARMING, (_C.SHUT, _C.PART, _C.PROMOTE)),
        _E.DEVICE_BAD: (_S.BARRING, (_C.SHUT, _C.ASK_EXIT)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.SHUT, _C.ASK_EXIT)),
    },
    _S.FENCING: {
        _E.PROCESS_REAPED: (_S.CLEARING, (_C.FENCE, _C.CLEAR)),
        _E.FOUND_STUCK: (_S.FENCING, ()),
        _E.DEVICE_BAD: (_S.BARRING, ()),
        _E.STOP_ASKED: (_S.STOPPING, ()),
    },
    _S.CLEARING: {
        _E.MEMORY_FREE: (_S.BACKOFF, (_C.WAIT,)),
        _E.MEMORY_HELD: (_S.BARRED, (_C.BAR,)),
        _E.DEVICE_BAD: (_S.BARRED, (_C.BAR,)),
        _E.STOP_ASKED: (_S.GONE, ()),
    },
    _S.BACKOFF: {
        _E.BACKOFF_OVER: (_S.STARTING, (_C.SPAWN,)),
        _E.DEVICE_BAD: (_S.BARRED, (_C.BAR,)),
        _E.STOP_ASKED: (_S.GONE, ()),
    },
    _S.BARRING: {
        _E.PROCESS_SPOKE: (_S.BARRING, ()),
        _E.MODELS_WARM: (_S.BARRING, ()),
        _E.FOUND_STUCK: (_S.BARRING, (_C.KILL,)),
        _E.PROCESS_REAPED: (_S.BARRED, (_C.FENCE, _C.BAR)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.ASK_EXIT,)),
    },
    _S.BARRED: {
        _E.DEVICE_GOOD: (_S.BACKOFF, (_C.WAIT,)),
        _E.BACKOFF_OVER: (_S.BARRED, ()),
        _E.STOP_ASKED: (_S.GONE, ()),
    },
    _S.STOPPING: {
        _E.PROCESS_SPOKE: (_S.STOPPING, ()),
        _E.MODELS_WARM: (_S.STOPPING, ()),
        _E.FOUND_STUCK: (_S.STOPPING, (_C.KILL,)),
        _E.PROCESS_REAPED: (_S.GONE, (_C.FENCE,)),
        _E.BACKOFF_OVER: (_S.STOPPING, ()),
        _E.STOP_ASKED: (_S.STOPPING, ()),
    },
    _S.GONE: {
        _E.BACKOFF_OVER: (_S.GONE, ()),
        _E.STOP_ASKED: (_S.GONE, ()),
    },
}
_LATE = frozenset({_E.MEMORY_FREE, _E.MEMORY_HELD, _E.DEVICE_BAD, _E.DEVICE_GOOD})
"""News of a device may come when nothing follows from it any more: that is no edge, and no bug."""


class ExecutorMachine:  # mutable: one executor's place in the table
    """One executor over all its generations. `quarantine_faults` deaths in a minute put its device into quarantine; 0
    never does: processors do not break executors, models do."""

    __slots__ = (
        "_deaths_s",
        "_quarantine_faults",
        "backoff_s",
        "crashes",
        "died_s",
        "generation",
        "quarantines",
        "ready_since_s",
        "spawned",
        "state",
        "story",
    )  # fmt: skip

    def __init__(self, quarantine_faults: int = 0) -> None:
        self._quarantine_faults = quarantine_faults
        self._deaths_s: deque[float] = deque(maxlen=max(1, quarantine_faults))
        self.state = ExecutorState.DOWN
        self.generation = 0
        self.spawned = 0
        """Generations given out, those of standbys too."""
        self.crashes = 0
        """How many in a row that have not worked, where there is a quarantine for the others; elsewhere how many in a
        row that were not stable."""
        self.quarantines = 0
        """How many in a row; 0 while the device is not, or no longer, in quarantine."""
        self.backoff_s = 0.0
        self.ready_since_s = 0.0
        self.died_s = float("-inf")
        """When the last process was lost."""
        self.story: deque[str] = deque(maxlen=STORY_EDGES)

    def handle(self, event: ExecutorEvent, now: float) -> tuple[Command, ...]:
        """The commands that follow from an event. Raises IllegalTransition, and stays as it is, where there is none."""
        edge = TABLE[self.state].get(event)
        if edge is None:
            if event in _LATE:
                return ()
            raise IllegalTransition(
                f"an executor that is {self.state.value} met {event.value!r};"
                f" before: {'; '.join(self.story) or 'nothing'}"
            )
        before, (self.state, commands) = self.state, edge
        self.story.append(f"{now:.3f} {before.value}, {event.value}, {self.state.value}")
        if Command.FENCE in commands or Command.PART in commands:
            self._died(now)
        if Command.SPAWN in commands:
            self.generation = self.next_generation()
        if Command.OPEN in commands:
            self.ready_since_s = now
        return commands

    @property
    def quarantined(self) -> bool:
        """Whether its device is left alone because it kept breaking executors."""
        return self.state is ExecutorState.BACKOFF and self.backoff_s >= QUARANTINE_FIRST_S

    def next_generation(self) -> int:
        """A number that no other process of this executor has or had."""
        self.spawned += 1
        return self.spawned

    def may_promote(self, now: float) -> bool:
        """Whether a standby may follow at once, or one death more puts the device into quarantine."""
        return not self._is_too_much(now, self._quarantine_faults - 1)

    def _is_too_much(self, now: float, deaths: int) -> bool:
        recent = [at_s for at_s in self._deaths_s if now - at_s < QUARANTINE_WINDOW_S]
        return self._quarantine_faults > 0 and len(recent) >= deaths

    def _died(self, now: float) -> None:
        worked = self.ready_since_s > 0
        stable = worked and now - self.ready_since_s >= STABLE_S
        if stable:
            self.quarantines = 0
        # One that worked on a device ends the row: one bad request must not cost the device even a moment, nor do some
        # of them cost what follows more than a start each. What bounds them is the quarantine, where there is one.
        self.crashes = 1 if stable or (worked and self._quarantine_faults > 0) else self.crashes + 1
        self.ready_since_s = 0.0
        self._deaths_s.append(now)
        self.died_s = now
        if self._is_too_much(now, self._quarantine_faults):
            self.quarantines += 1
            self._deaths_s.clear()
            self.backoff_s = min(QUARANTINE_FIRST_S * 2 ** (self.quarantines - 1), QUARANTINE_MAX_S)
        elif self.crashes == 1:
            self.backoff_s = 0.0
        else:
            self.backoff_s = min(BACKOFF_FIRST_S * 2 ** (self.crashes - 2), BACKOFF_MAX_S)

    def __repr__(self) -> str:
        return f"<ExecutorMachine {self.state.value}, generation {self.generation}, {self.crashes} crashes>"


class Suspects:  # mutable: counts deaths by request
    """The requests that were running when an executor ended."""

    def __init__(self) -> None:
        self._deaths: dict[tuple[int, int], int] = {}

    def was_running(self, client_id: int, request_no: int) -> None:
        """An executor ended while this request ran."""
        key = (client_id, request_no)
        self._deaths[key] = self._deaths.pop(key, 0) + 1
        if len(self._deaths) > SUSPECTS_MAX:
            del self._deaths[next(iter(self._deaths))]

    def check(self, client_id: int, request_no: int) -> None:
        """Raises PoisonRequest for a request that ended two executors."""
        if self._deaths and self._deaths.get((client_id, request_no), 0) >= DEATHS_MAX:
            raise PoisonRequest(
                f"request {request_no} was running when {DEATHS_MAX} executors ended and is refused; change its inputs"
            )
