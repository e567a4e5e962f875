"""One completion queue, and who takes what is on it: the loop, or a caller that waits anyway.

The loop watches the queue's event channel. A caller in a thread of its own takes over while it waits: its answer then
wakes that thread alone, and costs no hand-over of the interpreter's lock. One thread at a time takes completions, so
they keep their order. While answers are awaited the queue is polled for a bounded time, then the channel is armed, so
that an idle process polls nothing. A thread that led leaves the channel unarmed: it arms it when it waits again, while
its next message is on its way, and if others wait the loop does. This module knows no connection. Read
`fabric/rdma/engine.py` next.
"""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections import deque
from contextlib import ExitStack, suppress
from math import inf
from threading import get_ident, main_thread
from typing import TYPE_CHECKING, Final

from fabric.errors import OverspillError
from fabric.rdma.device import Completions, Events
from fabric.rdma.gate import Gate
from fabric.timer_fd import TimerFd

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.rdma.bell import Bell
    from fabric.rdma.device import Device, Done

_log = logging.getLogger(__name__)
POLL_MAX: Final = 64
"""Completions taken before others get their turn."""
_LEAVE_S: Final = 1.0
"""A thread that leads leaves as soon as it is rung; what it does then is bounded by one batch."""


class Rounds:  # mutable: open, then closed
    """A completion queue with a channel of its own: pyverbs cannot tell which of several queues an event is of, and one
    that is not acknowledged to its own queue keeps that from ever being closed. `hand_out` gets what was taken, in the
    order of the queue; `busy` says that answers are awaited; `spoiled` is told that completions were lost."""

    def __init__(
        self, device: Device, depth: int, hand_out: Callable[[list[Done]], None], busy: Callable[[], bool],
        spoiled: Callable[[Rounds], None], spin_us: int,
    ) -> None:  # fmt: skip
        self._spoiled = spoiled
        self._closed = False
        self.links = 0
        self.polls = 0
        self._hand_out, self._busy, self._spin_s = hand_out, busy, spin_us / 1e6
        self._turn: deque[None] = deque((None,))
        """Whoever has taken out what lies here takes completions. A lock would read the clock each time."""
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None  # the thread and the loop that watch it
        self._others: set[object] = set()  # who waits and does not lead: to add to a set takes no lock either
        self._wanted = False
        self._armed = True
        """Whether the channel will tell of the next completion."""
        self.events = Events(device)
        with ExitStack() as failed:
            failed.callback(self.events.close)
            self._completions = Completions(device, self.events, depth)
            failed.callback(self._completions.close)
            self._completions.arm()
            failed.pop_all()
        self._gate = Gate(self.events.fd)
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self.events.fd, select.POLLIN)
        self._poll.register(self._wake, select.POLLIN)
        self._timer = TimerFd()
        """Set to the earliest deadline of those who led: a call that is answered in time leaves it as it is."""
        self._timer_s = inf
        self._poll.register(self._timer.fd, select.POLLIN)

    @property
    def completions(self) -> Completions:
        """Where pairs put their completions."""
        return self._completions

    @property
    def fd(self) -> int:
        """Readable when the loop has something to take."""
        return self._gate.fileno()

    def readable(self, loop: asyncio.AbstractEventLoop) -> None:
        """The loop's turn, when `fd` is readable."""
        self._home = get_ident(), loop
        gate = self._gate
        if not self._begun():
            gate.wait()
            if not self._begun():
                return  # who has the turn takes it, or wakes the loop
            gate.waited_for()
        gate.heard()  # not before: what only a poke tells would be told to nobody
        try:
            self._told()
            if self._spin_s and self._busy():
                loop.call_soon(self._spin, loop, time.monotonic() + self._spin_s)
            else:
                self._rest()
        finally:
            self._ended()

    def running_loop(self) -> asyncio.AbstractEventLoop:
        """The loop that runs in this thread: to ask asyncio is a system call, which is not needed in the loop's own."""
        home = self._home
        if home is not None and home[0] == get_ident() and home[1].is_running():
            return home[1]
        return asyncio.get_running_loop()

    def take(self) -> None:
        """Takes what there is, without waiting for anything; where somebody leads, that thread does."""
        self._alone(self._take)

    def _take(self) -> None:
        while True:
            done = self._completions.poll(POLL_MAX)
            self.polls += 1
            if done:
                self._hand_out(done)
            if len(done) < POLL_MAX:
                return

    def _begun(self) -> bool:
        """Whether this thread takes completions, alone, until `_ended`."""
        try:
            self._turn.pop()
        except IndexError:
            return False
        return True

    def _ended(self) -> None:
        self._turn.append(None)
        # Looked at behind that, or who has just asked for it might go away unheard.
        if self._gate.is_waited_for:
            self._gate.waited_for()
        if self._wanted:
            self.open()

    def _alone(self, action: Callable[[], None]) -> None:
        if self._begun():
            try:
                self._carefully(action)
            finally:
                self._ended()

    def _carefully(self, action: Callable[[], None]) -> None:
        """Whatever goes wrong, connections whose completions were lost end."""
        try:
            if not self._closed:
                action()
        except OverspillError as error:  # the device
            _log.warning("%s", error)
            self._spoiled(self)
        except Exception:  # noqa: BLE001 - a bug of ours is not for the caller that happened to lead
            _log.exception("completions could not be handed out; their connections end")
            self._spoiled(self)
        except BaseException:  # the thread that leads may be the one that interrupts come to
            self._spoiled(self)
            raise

    def lead(self, bell: Bell, end_s: float) -> bool:
        """Takes completions in this thread until `bell` has rung or the time is up; False where somebody does already,
        and in the main thread: a signal's handler may raise anywhere in that. Blocks: not for the loop."""
        if self._closed or get_ident() == main_thread().ident or not self._begun():
            return False
        try:
            bell.wakes(self._wake)
            if not self._gate.is_shut:
                self._gate.shut()
            if not self._armed:
                self._rest()
            self._lead(bell, end_s)
        finally:
            bell.wakes(-1)
            if self._others:
                self._wanted = True
            self._ended()
        return True

    def open(self) -> None:
        """The loop takes completions again, if nobody leads. A thread that led leaves the gate shut, since it mostly
        comes back at once: whoever waits otherwise opens it, and the engine does now and then."""
        if not self._gate.is_shut:
            return
        self._wanted = True  # whoever has the turn does it when it leaves
        if self._begun():
            try:
                self._wanted = False
                if self._gate.is_shut and not self._closed:
                    self._gate.open(poked=not self._armed)
            finally:
                self._ended()

    def tend(self) -> None:
        """Opens it, and arms a channel that is not armed; the engine calls it every now and then."""
        self.open()
        if not self._armed:
            self._alone(self._arm)

    def waits(self, who: object) -> None:
        """`who` waits now and does not lead, until `waits_no_more`. Safe from any thread."""
        self._others.add(who)
        self.open()

    def waits_no_more(self, who: object) -> None:
        """The end of that."""
        self._others.discard(who)

    def close(self) -> None:
        """Closes both; what was posted to the queue's pairs must have come back. Nobody leads any more."""
        self._closed = True
        os.eventfd_write(self._wake, 1)  # whoever leads leaves
        end_s = time.monotonic() + _LEAVE_S
        while not self._begun() and time.monotonic() < end_s:  # for good
            time.sleep(0.001)
        self.events.acknowledge(self._completions)
        self._completions.close()
        self.events.close()
        self._gate.close()
        self._timer.close()
        os.close(self._wake)

    def _lead(self, bell: Bell, end_s: float) -> None:
        if self._spin_s:
            self._look(bell)
        self._time(end_s)
        while not (bell.rung or self._closed):
            for fd, _ in self._poll.poll():
                if fd == self._wake:
                    with suppress(BlockingIOError):
                        os.eventfd_read(fd)
                elif fd == self._timer.fd:
                    if time.monotonic() >= end_s:
                        return
                    self._timer_s = inf
                    self._time(end_s)
                else:
                    self._carefully(self._take_left)
                    if not bell.rung:
                        self._rest()

    def _look(self, bell: Bell) -> None:
        """Polls for a while before it waits."""
        end_s = time.monotonic() + self._spin_s
        while not (bell.rung or self._closed) and time.monotonic() < end_s:
            self._carefully(self._take)

    def _time(self, end_s: float) -> None:
        """Whoever leads wakes at this time or before."""
        if end_s < self._timer_s:
            self._timer.set_at(end_s)
            self._timer_s = end_s

    def _told(self) -> None:
        """The channel has an event: it is for what is taken now."""
        self._carefully(self._take_told)

    def _take_told(self) -> None:
        self.events.catch_up(self._completions)
        if self.events.take(self._completions):
            self._armed = False
        self._take()

    def _take_left(self) -> None:
        """The same, but the event stays where it is for now: it is read while the next answer is awaited."""
        self._armed = False
        self.events.leave()
        self._take()

    def _rest(self) -> None:
        """Arms the channel; what came between the last poll and that makes no event."""
        self._carefully(self._arm)

    def _arm(self) -> None:
        self._armed = False
        self.events.catch_up(self._completions)
        self._completions.arm()
        self._armed = True
        self._take()

    def _spin(self, loop: asyncio.AbstractEventLoop, end_s: float) -> None:
        """Polls once in each turn of the loop, so that what was handed out goes on meanwhile."""
        self.take()
        if self._busy() and time.monotonic() < end_s:
            loop.call_soon(self._spin, loop, end_s)
        else:
            self._alone(self._arm)
