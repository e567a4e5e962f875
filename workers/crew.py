"""All executors of a node together: started, looked at by one timer, stopped.

Read `workers/shell.py` for one of them.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from workers.sentinel import ExecutorEvent, ExecutorState

if TYPE_CHECKING:
    from fabric.local.reactor import Reactor, Timer
    from workers.shell import ExecutorShell

LOOK_BUSY_S = 0.05
LOOK_IDLE_S = 0.15
"""How often executors are looked at: while one works, so that a hung run is seen 50 ms after its limit; else so that
the first look at a new run comes within 150 ms."""


class Crew:  # mutable: owns the executors
    """All executors of a node, and the timer that looks at them."""

    def __init__(self, reactor: Reactor, shells: tuple[ExecutorShell, ...]) -> None:
        self.shells = shells
        self._reactor = reactor
        self._timer: Timer | None = None

    def start(self) -> None:
        """Starts every executor."""
        for shell in self.shells:
            shell.handle(ExecutorEvent.START_ASKED)
        self._look()

    def stop(self) -> None:
        """Asks every executor to end after its tasks."""
        for shell in self.shells:
            shell.handle(ExecutorEvent.STOP_ASKED)

    def kill(self) -> None:
        """Ends every executor that still lives."""
        for shell in self.shells:
            if shell.pid:
                shell.handle(ExecutorEvent.FOUND_STUCK)

    @property
    def gone(self) -> bool:
        """Whether no process is left."""
        return all(shell.machine.state is ExecutorState.GONE for shell in self.shells)

    @property
    def ready(self) -> int:
        """How many executors take work."""
        return sum(shell.desk.open for shell in self.shells)

    def close(self) -> None:
        """Stops looking."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        now = monotonic()
        busy = False
        for shell in self.shells:
            shell.look(now)
            busy = busy or bool(shell.desk.in_hand)
        self._timer = self._reactor.call_later(LOOK_BUSY_S if busy else LOOK_IDLE_S, self._look)
