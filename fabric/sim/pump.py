"""Who moves a simulated clock, and in which thread its actions run.

`VirtualPump` moves it in the thread of whoever waits, as fast as it can: a run is deterministic and takes no real time.
`RealPump` moves it with the real monotonic clock in a thread of its own, so that blocking calls of many threads and
asyncio tasks can share one simulated network. `SimLoop` is an asyncio loop whose time is a simulated clock.
Read `fabric/sim/channel.py` next.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

from fabric.sim.clock import SimClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

IDLE_WAIT_S = 0.5


class Pump(Protocol):
    """Runs a clock's actions."""

    clock: SimClock

    def post(self, action: Callable[[], None]) -> None:
        """Runs `action` in the clock's thread, soon. Safe from any thread."""

    def wait(self, done: threading.Event, until_s: float) -> bool:
        """Waits for `done` until the clock's `until_s`; whether it is set."""

    def close(self) -> None:
        """No action runs after this."""


class VirtualPump:
    """The clock moves while somebody waits. For one thread."""

    def __init__(self) -> None:
        self.clock = SimClock()

    def post(self, action: Callable[[], None]) -> None:
        """Runs `action` now."""
        action()

    def wait(self, done: threading.Event, until_s: float) -> bool:
        """Runs the simulation until `done` is set or `until_s` has come."""
        while not done.is_set():
            at_s = self.clock.next_at()
            if at_s is None or at_s > until_s:
                self.clock.run_until(until_s)
                break
            self.clock.run_next()
        return done.is_set()

    def close(self) -> None:
        """Nothing to end."""


class RealPump:  # mutable: owns a thread
    """The clock moves with the monotonic clock, in a thread that `close` ends."""

    def __init__(self) -> None:
        self.clock = SimClock(time.monotonic())
        self._posted: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="overspill-sim", daemon=False)
        self._thread.start()

    def post(self, action: Callable[[], None]) -> None:
        """Runs `action` in the pump's thread."""
        with self._wake:
            self._posted.append(action)
            self._wake.notify()

    def wait(self, done: threading.Event, until_s: float) -> bool:
        """Blocks the calling thread."""
        return done.wait(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        """Ends the thread. Safe twice."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                if not self._posted and not self._closed:
                    at_s = self.clock.next_at()
                    self._wake.wait(IDLE_WAIT_S if at_s is None else max(0.0, at_s - time.monotonic()))
                closed, actions = self._closed, list(self._posted)
                self._posted.clear()
            self.clock.run_until(time.monotonic())  # what is posted happens now, not when the clock moved last
            while actions:
                actions.pop(0)()  # popped, so that nothing of a call is kept while this thread waits for the next
            if closed:
                return
            self.clock.run_until(time.monotonic())


class _NoSelector(selectors.BaseSelector):
    """Has no files; instead of sleeping it moves the clock."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        at_s = self._clock.next_at()
        if timeout is None:
            assert at_s is not None, "every task waits and nothing is scheduled: this would hang for ever"
            self._clock.run_next()
        elif timeout > 0.0:
            until_s = self._clock.now + timeout
            if at_s is not None and at_s <= until_s:
                self._clock.run_next()
            else:
                self._clock.run_until(until_s)
        return []

    def register(self, fileobj: object, events: int, data: object = None) -> selectors.SelectorKey:
        raise NotImplementedError("a simulated loop has no files; use the simulated network")

    def unregister(self, fileobj: object) -> selectors.SelectorKey:
        raise NotImplementedError("a simulated loop has no files; use the simulated network")

    def get_map(self) -> Mapping[object, selectors.SelectorKey]:  # type: ignore[override]
        return {}


class SimLoop(asyncio.BaseEventLoop):
    """An asyncio loop in simulated time: `asyncio.sleep(60)` takes no time. One thread only; it watches no files."""

    def __init__(self, clock: SimClock) -> None:
        super().__init__()
        self._sim_clock = clock
        self._selector = _NoSelector(clock)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        """The simulated time, in seconds."""
        return self._sim_clock.now

    def _process_events(self, event_list: list[object]) -> None:
        assert not event_list, "there are no files that could have events"

    def _write_to_self(self) -> None:
        """Wakes nobody: there is one thread only."""
