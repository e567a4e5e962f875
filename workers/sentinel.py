"""What happens to executors: they start, warm up, work, die, and are followed by a new generation.

An executor that ended, hung, or was stopped is killed if need be, reaped, and only then are its writers fenced: until
the kernel says that the process is gone, it may still write to a tenant's memory. Crash loops are slowed down, and a
request that was running at two deaths is refused as poison. This module never signals a process and reads no clock:
`workers/shell.py` carries its commands out. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from fabric.errors import IllegalTransition, PoisonRequest

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 10.0
"""An executor that cannot live is tried this often: the recovery time that the published system reports."""
STABLE_S = 30.0
"""An executor that was ready this long ends the count of crashes in a row."""
START_TIMEOUT_S = 300.0
"""From start to ready. Loading a large network and warming it up takes a minute or two."""
STOP_SEEN_MIN_S = 0.2
"""A stop shorter than this is somebody's debugger or a job control key, not a fault."""
HEARTBEAT_LOST_S = 5.0
"""An idle executor shows ten signs of life a second; on a crowded machine half a second may pass without one."""
HANG_FLOOR_S = 0.05
HANG_TIMES_SLOWEST = 4
HANG_FIRST_RUN_S = 1.0
"""A model that was never seen to run is given a second at least, whatever its caller's deadline."""
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
    BACKOFF = "backoff"
    STOPPING = "stopping"
    GONE = "gone"


class ExecutorEvent(Enum):
    """What an executor's shell has seen."""

    START_ASKED = "start asked"
    PROCESS_SPOKE = "process spoke"
    MODELS_WARM = "models warm"
    FOUND_STUCK = "found stuck"
    PROCESS_REAPED = "process reaped"
    BACKOFF_OVER = "back-off over"
    STOP_ASKED = "stop asked"


class Command(Enum):
    """What the shell must do."""

    SPAWN = "spawn a new generation"
    OPEN = "give it work"
    SHUT = "give it no more work"
    KILL = "kill the process"
    FENCE = "its writers are fenced: settle what it had in hand"
    WAIT = "come back after the back-off"
    ASK_EXIT = "ask it to end after its tasks"


_S, _E, _C = ExecutorState, ExecutorEvent, Command
TABLE: dict[ExecutorState, dict[ExecutorEvent, tuple[ExecutorState, tuple[Command, ...]]]] = {
    _S.DOWN: {
        _E.START_ASKED: (_S.STARTING, (_C.SPAWN,)),
        _E.STOP_ASKED: (_S.GONE, ()),
    },
    _S.STARTING: {
        _E.PROCESS_SPOKE: (_S.WARMING, ()),
        _E.FOUND_STUCK: (_S.FENCING, (_C.KILL,)),
        _E.PROCESS_REAPED: (_S.BACKOFF, (_C.FENCE, _C.WAIT)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.KILL,)),
    },
    _S.WARMING: {
        _E.PROCESS_SPOKE: (_S.WARMING, ()),
        _E.MODELS_WARM: (_S.READY, (_C.OPEN,)),
        _E.FOUND_STUCK: (_S.FENCING, (_C.KILL,)),
        _E.PROCESS_REAPED: (_S.BACKOFF, (_C.FENCE, _C.WAIT)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.KILL,)),
    },
    _S.READY: {
        _E.FOUND_STUCK: (_S.FENCING, (_C.SHUT, _C.KILL)),
        _E.PROCESS_REAPED: (_S.BACKOFF, (_C.SHUT, _C.FENCE, _C.WAIT)),
        _E.STOP_ASKED: (_S.STOPPING, (_C.SHUT, _C.ASK_EXIT)),
    },
    _S.FENCING: {
        _E.PROCESS_REAPED: (_S.BACKOFF, (_C.FENCE, _C.WAIT)),
        _E.FOUND_STUCK: (_S.FENCING, ()),
        _E.STOP_ASKED: (_S.STOPPING, ()),
    },
    _S.BACKOFF: {
        _E.BACKOFF_OVER: (_S.STARTING, (_C.SPAWN,)),
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


class ExecutorMachine:  # mutable: one executor's place in the table
    """One executor over all its generations."""

    __slots__ = ("backoff_s", "crashes", "generation", "ready_since_s", "state", "story")

    def __init__(self) -> None:
        self.state = ExecutorState.DOWN
        self.generation = 0
        self.crashes = 0
        self.backoff_s = 0.0
        self.ready_since_s = 0.0
        self.story: deque[str] = deque(maxlen=STORY_EDGES)

    def handle(self, event: ExecutorEvent, now: float) -> tuple[Command, ...]:
        """The commands that follow from an event. Raises IllegalTransition, and stays as it is, where there is none."""
        edge = TABLE[self.state].get(event)
        if edge is None:
            raise IllegalTransition(
                f"an executor that is {self.state.value} met {event.value!r};"
                f" before: {'; '.join(self.story) or 'nothing'}"
            )
        before, (self.state, commands) = self.state, edge
        self.story.append(f"{now:.3f} {before.value}, {event.value}, {self.state.value}")
        if Command.SPAWN in commands:
            self.generation += 1
        if Command.OPEN in commands:
            self.ready_since_s = now
        if Command.WAIT in commands:
            self._slow_down(before, now)
        return commands

    def _slow_down(self, before: ExecutorState, now: float) -> None:
        was_ready = before in {ExecutorState.READY, ExecutorState.FENCING} and self.ready_since_s > 0
        if was_ready and now - self.ready_since_s >= STABLE_S:
            self.crashes = 0
        self.crashes += 1
        self.ready_since_s = 0.0
        # The first one is followed at once: one bad request must not cost a device even a moment.
        self.backoff_s = 0.0 if self.crashes == 1 else min(BACKOFF_FIRST_S * 2 ** (self.crashes - 2), BACKOFF_MAX_S)

    def __repr__(self) -> str:
        return f"<ExecutorMachine {self.state.value}, generation {self.generation}, {self.crashes} crashes>"


def hang_at_s(began_s: float, deadline_s: float, slowest_us: int, execution_timeout_s: float | None) -> float:
    """When a run counts as hung. A caller's tiny deadline alone never ends an executor: the model's own slowest run
    counts too, and where the model sets a limit, that alone."""
    if execution_timeout_s is not None:
        return began_s + execution_timeout_s
    patience_s = max(HANG_FLOOR_S, HANG_TIMES_SLOWEST * slowest_us / 1e6) if slowest_us else HANG_FIRST_RUN_S
    return max(deadline_s, began_s + patience_s)


@dataclass(frozen=True, slots=True)
class Vitals:
    """What one look at an executor shows."""

    heartbeat: int
    stopped: bool
    busy: bool


class Watch:  # mutable: remembers the last looks
    """Tells from repeated looks whether a process has stopped or fallen silent."""

    __slots__ = ("_beat_at_s", "_heartbeat", "_stopped_since_s")

    def __init__(self, now: float) -> None:
        self._heartbeat = -1
        self._beat_at_s = now
        self._stopped_since_s: float | None = None

    def look(self, vitals: Vitals, now: float) -> str:
        """Why the executor must be fenced, or an empty string. Silence counts only while it is idle: a long run may
        hold the interpreter, and has its own limit."""
        if vitals.heartbeat != self._heartbeat or vitals.busy:
            self._heartbeat, self._beat_at_s = vitals.heartbeat, now
        if not vitals.stopped:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = now
        elif now - self._stopped_since_s >= STOP_SEEN_MIN_S:
            return "was stopped by a signal"
        if now - self._beat_at_s >= HEARTBEAT_LOST_S:
            return f"gave no sign of life for {HEARTBEAT_LOST_S:.0f} s"
        return ""


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
