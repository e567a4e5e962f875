"""The device and its completions on an asyncio loop: one for each process that speaks the rdma wire.

It opens what the choice names when the first connection needs it, gives each connection a place on a completion queue
that cannot overrun, and hands completions out to them. Port and device events end the connections that they break.
Events are taken in the loop's thread, completions there or by a caller that waits; `place` and `call_later` may be
called from any. This module never judges a message. Read `fabric/rdma/rounds.py` for who takes completions, then
`fabric/rdma/connection.py`.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from fabric.errors import NodeLost, ResourceExhausted, Unavailable
from fabric.hot_loop import unwatch, watch
from fabric.rdma.alarms import GID_CHANGE, ends_the_device, why_all_end, why_ends
from fabric.rdma.budget import Budget
from fabric.rdma.choice import Choice, choose
from fabric.rdma.config import COMPLETIONS_PER_LINK, RdmaConfig
from fabric.rdma.device import Device
from fabric.rdma.facts import read_host
from fabric.rdma.member import Member, hand_out
from fabric.rdma.pulse import PULSE_S
from fabric.rdma.rounds import Rounds
from fabric.rdma.verbs import EVENTS, load

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fabric.rdma.device import Done
    from fabric.rdma.facts import Host

_log = logging.getLogger(__name__)
LINKS_PER_QUEUE = 32
"""Connections on one completion queue: 32 x 132 completions, 264 KiB of a usual device's memory."""
_DRAIN_S = 0.5


class Place(NamedTuple):
    """Where a connection stands: the way out, the open device, its queue, and its number."""

    choice: Choice
    device: Device
    rounds: Rounds
    number: int


class Engine:  # mutable: opens a device, then serves it
    """RDMA for one process. `look` gives the facts of the host; `awaited` has something of each answer that is awaited:
    to add to a set takes no lock, which would be a look at the clock for each."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: RdmaConfig, look: Callable[[], Host] = read_host
    ) -> None:
        self.config = config
        self.budget = Budget(config.pinned_bytes_max)
        self.awaited: set[object] = set()
        self._loop = loop
        self._look = look
        self._lock = threading.Lock()
        self._device: Device | None = None
        self._queues: list[Rounds] = []
        self._members: dict[int, tuple[Member, Rounds]] = {}
        self._next = 0
        self._closed = self._tending = self._stale = False
        mine = weakref.ref(self)

        def forked() -> None:
            engine = mine()
            if engine is not None and engine._device is not None:
                engine._closed = True
                engine._device.disown()

        os.register_at_fork(after_in_child=forked)

    def choose(self) -> Choice:
        """The way out of this host as it is now. Raises ConfigError, Unavailable."""
        return choose(self._look(), self.config)

    def mtu(self, choice: Choice) -> int:
        """The verbs code of what the port carries now. Raises Unavailable."""
        assert self._device is not None, "asked by connections, which have a place"
        return self._device.port_mtu(choice.port)

    @property
    def read_depth(self) -> int:
        """Reads that a pair may have out."""
        assert self._device is not None, "asked by connections, which have a place"
        return max(1, self._device.limits.read_depth)

    def place(self, member: Member, choice: Choice) -> Place:
        """A place for a connection, which gives it back with `leave`. Raises MissingDependency, Unavailable and
        ResourceExhausted where the device has no room for it."""
        with self._lock:
            if self._closed:
                raise Unavailable("the rdma wire was closed here; use another")
            if self._stale:
                raise Unavailable("the RDMA device is being opened again; try it in a second")
            device = self._opened(choice)
            queue = next((one for one in self._queues if one.links < LINKS_PER_QUEUE), None)
            if queue is None:
                queue = self._new_queue(device)
            self._next += 1
            queue.links += 1
            self._members[self._next] = (member, queue)
            if not self._tending:
                self._tending = True
                self.call_soon(self._tend)
            return Place(choice, device, queue, self._next)

    def leave(self, number: int) -> None:
        """The connection's pairs are destroyed: nothing of it can come any more."""
        with self._lock:
            _, queue = self._members.pop(number)
            queue.links -= 1
            if self._stale and not self._members:
                self.call_soon(self._renew)

    @property
    def polls(self) -> int:
        """How often completions were looked for."""
        return sum(queue.polls for queue in self._queues)

    @property
    def links(self) -> int:
        """Connections that have a place."""
        return len(self._members)

    def in_loop(self) -> bool:
        """Whether the loop still turns."""
        return not self._loop.is_closed() and self._loop.is_running()

    def interrupted(self) -> asyncio.AbstractEventLoop | None:
        """The loop, where this is the main thread: a signal's handler may raise anywhere in that, so what must not be
        left half done is done on the loop. None in any other thread, and where the loop does not turn."""
        if threading.get_ident() != threading.main_thread().ident or self._closed or not self.in_loop():
            return None
        return self._loop

    def call_soon(self, action: Callable[[], None]) -> None:
        """Runs `action` in the loop's thread. Safe from any thread; after the loop's end it does nothing."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(action)

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Runs `action` in the loop's thread after a while. Safe from any thread."""

        def arm() -> None:
            self._loop.call_later(delay_s, action)

        self.call_soon(arm)

    def end_later(self, number: int, delay_s: float) -> None:
        """What of a connection did not come back by then is not waited for. The timer holds no connection: one that is
        gone by then must not be kept, and its memory with it."""

        def end() -> None:
            found = self._members.get(number)
            if found is not None:
                found[0].end_now()

        self.call_later(delay_s, end)

    def close(self) -> None:
        """Ends every connection and closes the device. Blocks for at most `_DRAIN_S`; call it from the loop's thread,
        or after the loop has ended."""
        with self._lock:
            self._closed = True
            members = [member for member, _ in self._members.values()]
        for member in members:
            member.fail(NodeLost("the rdma wire was closed here; connect again"))
        end_s = time.monotonic() + _DRAIN_S
        while self._members and time.monotonic() < end_s:
            self._drain()
            time.sleep(0.001)
        for member, _ in tuple(self._members.values()):
            member.end_now()
        self._shut()

    def _shut(self) -> None:
        """Closes the device and its queues, where nobody uses them any more."""
        device, self._device = self._device, None
        queues, self._queues = self._queues, []
        if device is None:
            return
        with suppress(RuntimeError, OSError):
            for fd in (device.async_fd, *(queue.fd for queue in queues)):
                unwatch(self._loop, fd)
        if self._members:  # pyverbs dies when it is used after its context: better the kernel ends it with the process
            _log.warning(
                "%d rdma connections did not come to an end; their memory returns with the process", self.links
            )
            return
        for queue in queues:
            queue.close()
        device.close()

    def _renew(self) -> None:
        """Closes a device that serves nobody any more: the next connection opens it again, or another one."""
        with self._lock:
            if self._stale and not self._members and not self._closed:
                self._shut()
                self._stale = False

    def _opened(self, choice: Choice) -> Device:
        device = self._device
        if device is None:
            device = self._device = Device(load(), choice.device)
            self._attach(device.async_fd, self._told)
        elif device.name != choice.device:
            self._stale = not self._members
            self.call_soon(self._renew)
            raise Unavailable(
                f"RDMA goes over {device.name} here until its connections end, and {choice.device} would be better now"
            )
        return device

    def _attach(self, fd: int, action: Callable[[], None]) -> None:
        def attach() -> None:
            if self._device is not None:
                watch(self._loop, fd, action)

        self.call_soon(attach)

    def _new_queue(self, device: Device) -> Rounds:
        depth = min(LINKS_PER_QUEUE * COMPLETIONS_PER_LINK, device.limits.cqe)
        if depth < COMPLETIONS_PER_LINK * LINKS_PER_QUEUE and self._queues:
            raise ResourceExhausted(f"{device.name} holds {depth} completions only; serve fewer peers over rdma")
        queue = Rounds(device, depth, self._hand_out, lambda: bool(self.awaited), self._spoiled, self.config.spin_us)
        self._queues.append(queue)
        self._attach(queue.fd, lambda: self._readable(queue))
        return queue

    def _readable(self, queue: Rounds) -> None:
        if self._device is not None:
            queue.readable(self._loop)

    def _drain(self) -> None:
        for queue in tuple(self._queues):
            queue.take()

    def _hand_out(self, done: list[Done]) -> None:
        hand_out(done, self._members)

    def _spoiled(self, queue: Rounds) -> None:
        with self._lock:
            members = [member for member, its in self._members.values() if its is queue]
        for member in members:
            member.fail(NodeLost("taking what the NIC had done was interrupted; its requests go another way"))

    def _tend(self) -> None:
        with self._lock:
            self._tending = bool(self._members) and not self._closed
            members = [member for member, _ in self._members.values()]
        if self._tending:
            for queue in self._queues:
                queue.tend()
            now = time.monotonic()
            for member in members:
                member.tend(now)
            self._loop.call_later(PULSE_S, self._tend)

    def _told(self) -> None:
        device = self._device
        while device is not None and (code := device.take_event()) is not None:
            name = EVENTS.get(code, str(code))
            _log.info("RDMA device %s tells %s", device.name, name)
            all_end = why_all_end(device.name, name)
            if ends_the_device(name):
                self._stale = True
            host = self._look() if name == GID_CHANGE else None
            for member, _ in tuple(self._members.values()):
                why = all_end or ("" if host is None else why_ends(device.name, member.gid, host))
                if why:
                    member.fail(NodeLost(why), cut=not ends_the_device(name))
        self._renew()
