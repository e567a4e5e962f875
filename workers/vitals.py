"""Tells from looks at an executor whether it lives: hung runs, stopped processes, processes that fall silent.

It never signals a process and reads no clock. Read `workers/shell.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass

STOP_SEEN_MIN_S = 0.2
"""A stop shorter than this is somebody's debugger or a job control key, not a fault."""
HEARTBEAT_LOST_S = 5.0
"""An idle executor shows ten signs of life a second; on a crowded machine half a second may pass without one."""
ASIDE_MAX_S = 5.0
"""What belongs to no request (a stream's `finally`, the end of a model) may take as long as an idle executor may be
silent: nobody waits for it, but all that is asked next waits behind it."""
HANG_FLOOR_S = 0.05
HANG_TIMES_SLOWEST = 4
HANG_FIRST_RUN_S = 1.0
"""A model that was never seen to run is given a second at least, whatever its caller's deadline."""


def hang_at_s(began_s: float, deadline_s: float, slowest_us: int, execution_timeout_s: float | None) -> float:
    """When a run counts as hung. A caller's tiny deadline alone never ends an executor: the model's own slowest run
    counts too, and where the model sets a limit, that alone."""
    if execution_timeout_s is not None:
        return began_s + execution_timeout_s
    patience_s = max(HANG_FLOOR_S, HANG_TIMES_SLOWEST * slowest_us / 1e6) if slowest_us else HANG_FIRST_RUN_S
    return max(deadline_s, began_s + patience_s)


def hangs_aside(since_ns: int, now: float) -> bool:
    """Whether an executor that has been at what belongs to no request since then, 0 if it is not, must not go on."""
    return since_ns > 0 and now - since_ns / 1e9 >= ASIDE_MAX_S


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
