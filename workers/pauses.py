"""The times at which an executor is left alone: the back-off after deaths, a device in quarantine, one that is barred.

What ends a pause is an event for the table in `workers/sentinel.py`; nothing is decided here. Read that next.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from workers.sentinel import ExecutorEvent, ExecutorMachine, ExecutorState

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Reactor, Timer
    from workers.seat import Seat

_log = logging.getLogger(__name__)
BARRED_LOOK_S: Final = 30.0
"""How often a barred device is asked after."""


class Pauses:  # mutable: one timer
    """The pause of one executor. `handle` takes what ends it."""

    def __init__(
        self, reactor: Reactor, seat: Seat, name: str, machine: ExecutorMachine, handle: Callable[[ExecutorEvent], None]
    ) -> None:
        self._reactor = reactor
        self._seat = seat
        self._name = name
        self._machine = machine
        self._handle = handle
        self._timer: Timer | None = None
        self.barred = ""
        """Why its device is out of use."""

    def clear(self, pid: int) -> None:
        """The next generation waits until a process that ended holds nothing of the device."""
        self._seat.clear(pid, partial(self._is_clear, pid))

    def wait(self) -> bool:
        """The next generation starts after the back-off; gives whether that is a quarantine."""
        pause_s = self._machine.backoff_s
        if self._machine.quarantined:
            _log.error("%s: its device is in quarantine for %.0f s, and is probed then", self._name, pause_s)
        self._after(pause_s, self._over)
        return self._machine.quarantined

    def bar(self) -> None:
        """The device is asked after from time to time."""
        self._after(BARRED_LOOK_S, self._look)

    def _is_clear(self, pid: int, free: bool) -> None:
        if not free:
            self.barred = f"the memory of process {pid}, which ended, is still held"
        self._handle(ExecutorEvent.MEMORY_FREE if free else ExecutorEvent.MEMORY_HELD)

    def _after(self, pause_s: float, what: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._reactor.call_later(pause_s, what)

    def _over(self) -> None:
        self._handle(ExecutorEvent.BACKOFF_OVER)

    def _look(self) -> None:
        if self._machine.state is not ExecutorState.BARRED:
            return
        if self._seat.is_good():
            self._handle(ExecutorEvent.DEVICE_GOOD)
        else:
            self.bar()
