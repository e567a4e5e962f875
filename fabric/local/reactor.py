"""One thread's event loop: descriptors, timers, and calls from other threads. A plain epoll loop.

The node lives on it instead of asyncio because a hop through asyncio's readers costs 15 us more than through this loop
(measured: a relay of three processes 25.6 against 39.5 us), and a request takes two hops. It never runs user code that
may block, and catches nothing: an exception in a callback is a bug of ours and ends the process. Read
`fabric/local/listener.py` next.
"""

from __future__ import annotations

import heapq
import os
import select
import time
from collections import deque
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

EVENTS_MAX: Final = 256
"""Ready descriptors taken in one turn: they share the cost of the system call, and timers still stay true."""

LOOK_S: Final = 60e-6
"""A node's look for the next event of a closed loop. One wake-up of a sleeping core took 20 to 50 us where this was
chosen, and a whole call without any took 28 us: a longer look would cost more than it can save."""
_FOREVER_S: Final = -1.0
"""Of an epoll, which asks for the time where it is to wait for less."""
QUICK_MIN: Final = 2
"""Events in a row that came quickly before the loop looks for another: a request and its executor's answer."""


class Timer:  # mutable: armed, then fired or cancelled once
    """An action that is due at `at_s` of the monotonic clock."""

    __slots__ = ("_action", "at_s")

    def __init__(self, at_s: float, action: Callable[[], None]) -> None:
        self.at_s = at_s
        self._action: Callable[[], None] | None = action

    def cancel(self) -> None:
        """The action will not run; harmless after it ran."""
        self._action = None

    @property
    def pending(self) -> bool:
        """Whether the action is still to come."""
        return self._action is not None

    def fire(self) -> None:
        """Runs the action, once."""
        action, self._action = self._action, None
        if action is not None:
            action()

    def __lt__(self, other: Timer) -> bool:
        return self.at_s < other.at_s


class Reactor:  # mutable: owns the epoll descriptor and what is registered with it
    """The loop. All methods belong to its thread, except `call_soon_threadsafe` and `stop`.

    A callback may be called once without cause when a descriptor's number was reused within one turn, so callbacks
    read without blocking and take "nothing there" for an answer.
    """

    def __init__(self, look_s: float = 0.0) -> None:
        """`look_s`: where the last two events came within that time, it looks for the next one so long before it
        goes to sleep. The requests of one caller in a closed loop come so, and find this loop awake; paced ones do
        not, since every second gap is then long, and cost no look."""
        self._look_s = look_s
        self._quick = 0  # how many events in a row have come within `look_s`
        self._poll = select.epoll()
        self._callbacks: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._soon: deque[Callable[[], None]] = deque()
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._stopped = False
        self.add(self._wake_fd, self._woken)

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.monotonic()

    def add(self, fd: int, on_event: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        """Calls `on_event(events)` whenever the descriptor is ready (level-triggered), until `remove`."""
        assert fd not in self._callbacks, f"descriptor {fd} is added twice"
        self._poll.register(fd, events)
        self._callbacks[fd] = on_event

    def modify(self, fd: int, events: int) -> None:
        """Changes what a descriptor is watched for."""
        self._poll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Stops watching; call it before the descriptor is closed. Harmless for one that is not watched."""
        if self._callbacks.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> Timer:
        """Runs `action` after `delay_s` seconds, unless the timer is cancelled."""
        timer = Timer(time.monotonic() + delay_s, action)
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon_threadsafe(self, action: Callable[[], None]) -> None:
        """Runs `action` in the loop's thread at its next turn. Safe from any thread and from signal handlers."""
        self._soon.append(action)
        self._wake()

    def run(self) -> None:
        """Turns until `stop`."""
        while not self._stopped:
            self.turn()

    def turn(self, wait_max_s: float = _FOREVER_S) -> None:
        """One turn: waits for events or the next timer, `wait_max_s` at most, and runs what is due."""
        for fd, events in self._ready(self._wait_s(wait_max_s)):
            callback = self._callbacks.get(fd)
            if callback is not None:  # an earlier callback of this turn may have removed it
                callback(events)
        if self._timers:
            self._fire_due()

    def stop(self) -> None:
        """Ends `run` after the present turn. Safe from any thread and from signal handlers."""
        self._stopped = True
        self._wake()

    def close(self) -> None:
        """Closes the loop's own descriptors; those that were added belong to whoever added them."""
        if self._wake_fd >= 0:
            self.remove(self._wake_fd)
            os.close(self._wake_fd)
            self._wake_fd = -1
            self._poll.close()

    def _wake(self) -> None:
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def _woken(self, _events: int) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return
        for _ in range(len(self._soon)):  # what they add waits for the next turn, so that none starves the sockets
            self._soon.popleft()()
        if self._soon:
            self._wake()

    def _ready(self, wait_s: float) -> list[tuple[int, int]]:
        """What is ready now or within `wait_s`, at most EVENTS_MAX of it."""
        if not self._look_s:
            return self._poll.poll(wait_s, EVENTS_MAX)
        ready = self._poll.poll(0, EVENTS_MAX)
        if ready:
            return ready
        began_s = time.monotonic()
        if self._quick >= QUICK_MIN:
            end_s = began_s + (self._look_s if wait_s < 0.0 else min(self._look_s, wait_s))
            while not ready and time.monotonic() < end_s:
                os.sched_yield()  # whoever is to make the event may need this very core
                ready = self._poll.poll(0, EVENTS_MAX)
        if not ready:
            ready = self._poll.poll(wait_s, EVENTS_MAX)
        self._quick = self._quick + 1 if time.monotonic() - began_s < self._look_s else 0
        return ready

    def _wait_s(self, wait_max_s: float) -> float:
        while self._timers and not self._timers[0].pending:
            heapq.heappop(self._timers)
        if not self._timers:
            return wait_max_s
        wait_s = max(0.0, self._timers[0].at_s - time.monotonic())
        return wait_s if wait_max_s < 0.0 else min(wait_max_s, wait_s)

    def _fire_due(self) -> None:
        now = time.monotonic()
        due = []
        while self._timers and self._timers[0].at_s <= now:
            due.append(heapq.heappop(self._timers))
        for timer in due:
            timer.fire()
