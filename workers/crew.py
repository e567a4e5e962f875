"""All executors of a node together: started, looked at by one timer, stopped.

Read `workers/shell.py` for one of them.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from workers.handover import Control
from workers.parcel import packed
from workers.sentinel import ExecutorEvent

if TYPE_CHECKING:
    from collections.abc import Collection

    from fabric.local.reactor import Reactor, Timer
    from workers.repository import ModelSource
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

    def drop_resident(self, number: int) -> None:
        """The node keeps a resident no more."""
        for shell in self.shells:
            shell.lending.drop(number, shell.tell)

    def stop(self) -> None:
        """Asks every executor to end after its tasks."""
        for shell in self.shells:
            shell.handle(ExecutorEvent.STOP_ASKED)

    def kill(self) -> None:
        """Ends every executor that still lives."""
        for shell in self.shells:
            shell.kill()

    @property
    def gone(self) -> bool:
        """Whether no process is left."""
        return all(shell.gone for shell in self.shells)

    @property
    def ready(self) -> int:
        """How many executors take work."""
        return sum(shell.desk.open for shell in self.shells)

    def stage(self, source: ModelSource, wanted: Collection[int]) -> set[int]:
        """Has those of the `wanted` executors that take work load a model beside those that they have; gives their
        numbers. Raises OSError when there is no memory to hand it over."""
        numbers = {shell.desk.number for shell in self.shells if shell.desk.open and shell.desk.number in wanted}
        with packed((source,)) as fd:
            self.tell(Control("stage", source.serial), numbers, (fd,))
        return numbers

    def commit(self, serial: int, held: Collection[int]) -> None:
        """From the next task on, what was staged serves. Executors that came up meanwhile load it now, and those that
        should not have it any more let it go."""
        self.tell(Control("commit", serial), held)
        for shell in self.shells:
            if shell.desk.open and shell.desk.number not in held:
                shell.load_all()

    def tell(self, control: Control, numbers: Collection[int] | None = None, descriptors: tuple[int, ...] = ()) -> None:
        """Sends a word to these executors, or to all."""
        for shell in self.shells:
            if numbers is None or shell.desk.number in numbers:
                shell.tell(control, descriptors)

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
