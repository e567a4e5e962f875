"""An open RDMA device, the channel that tells of its completions, and the queues that hold them.

Both descriptors are non-blocking: pyverbs would wait with the interpreter's lock held, so it is asked only when there
is something to take, and "nothing there" is a good answer. This module decides nothing. Read `fabric/rdma/domain.py`
next.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from fabric.errors import ResourceExhausted, Unavailable

if TYPE_CHECKING:
    from fabric.rdma.verbs import Verbs

_EVENT_FILE = "anon_inode:[infinibandevent]"
_COMMAND_FILE = "/dev/infiniband/uverbs"
_IS_WRITTEN: Final = 129  # IBV_WC_RECV_RDMA_WITH_IMM


@final
@dataclass(init=False, slots=True)
class Done:  # mutable: made for each completion, see fabric/frame_values.py
    """One completion. `status` 0 is good; on any other only `wr_id` means something. `written` says that it tells of a
    write of the peer's, with the number `imm`."""

    wr_id: int
    status: int
    written: bool
    nbytes: int
    imm: int

    def __init__(self, wr_id: int, status: int, written: bool, nbytes: int, imm: int) -> None:
        self.wr_id = wr_id
        self.status = status
        self.written = written
        self.nbytes = nbytes
        self.imm = imm


ACKNOWLEDGE_EVERY: Final = 64
"""Events are only counted by an acknowledgement, which closing waits for."""
_NOTHING: Final[list[Done]] = []


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do at most."""

    cqe: int
    queue_pairs: int
    read_depth: int


class Device:  # mutable: open, then closed
    """An open device. `async_fd` becomes readable when it has an event to tell."""

    def __init__(self, verbs: Verbs, name: str) -> None:
        self.verbs, self.name = verbs, name
        before, commands = _files(_EVENT_FILE), _files(_COMMAND_FILE)
        try:
            self.context = verbs.device.Context(name=name)
            facts = self.context.query_device()
        except (verbs.error, OSError) as error:
            raise Unavailable(
                f"RDMA device {name} cannot be opened ({error}); see that /dev/infiniband may be used"
            ) from None
        self.async_fd = _new_event_file(before)
        self._command_fds = _files(_COMMAND_FILE) - commands
        self.limits = Limits(int(facts.max_cqe), int(facts.max_qp), min(int(facts.max_qp_rd_atom), 16))
        self.closed = False

    def port_mtu(self, port: int) -> int:
        """The verbs code of what the port can carry now. Raises Unavailable when the port is gone."""
        try:
            return int(self.context.query_port(port).active_mtu)
        except self.verbs.error as error:
            raise Unavailable(f"port {port} of RDMA device {self.name} cannot be asked ({error}); look at it") from None

    def take_event(self) -> int | None:
        """The next event's code, or None where there is none."""
        try:
            event = self.context.get_async_event()
            code = int(event.event_type)
            event.ack()
        except (self.verbs.error, OSError):
            return None
        return code

    def disown(self) -> None:
        """In a forked child: what pyverbs' objects do when they die must not reach the parent's device."""
        for fd in () if self.closed else self._command_fds:
            with suppress(OSError):
                os.close(fd)
        self.closed = True

    def close(self) -> None:
        """Closes the device; everything that stands on it must be closed before."""
        if not self.closed:
            self.closed = True
            with suppress(self.verbs.error):
                self.context.close()


class Events:  # mutable: open, then closed
    """The channel that tells of completions. `fd` becomes readable."""

    def __init__(self, device: Device) -> None:
        self._device = device
        before = _files(_EVENT_FILE)
        self.channel = device.verbs.cq.CompChannel(device.context)
        self.fd = _new_event_file(before)
        self._left = self._unacknowledged = 0

    def take(self, queue: Completions) -> bool:
        """Takes one event of the only queue that tells here; False where there is none. Never waits."""
        try:
            self.channel.get_cq_event(queue.cq)
        except (self._device.verbs.error, OSError):
            return False
        self._unacknowledged += 1
        if self._unacknowledged >= ACKNOWLEDGE_EVERY:
            self.acknowledge(queue)
        return True

    def leave(self) -> None:
        """There is an event, and it is taken later, by `catch_up`."""
        self._left += 1

    def catch_up(self, queue: Completions) -> None:
        """Takes events that were left: before the queue is armed again, since `fd` is readable until then."""
        while self._left:
            self._left -= 1
            self.take(queue)

    def acknowledge(self, queue: Completions) -> None:
        """Acknowledges events that were taken; closing the queue waits for that."""
        count, self._unacknowledged = self._unacknowledged, 0
        queue.acknowledge(count)

    def close(self) -> None:
        """Closes the channel; its queues must be closed before."""
        with suppress(self._device.verbs.error):
            self.channel.close()


class Completions:  # mutable: open, then closed
    """A completion queue that tells `events`."""

    def __init__(self, device: Device, events: Events, depth: int) -> None:
        self._verbs, self._name = device.verbs, device.name
        try:
            self.cq = device.verbs.cq.CQ(device.context, depth, None, events.channel, 0)
        except device.verbs.error as error:
            raise ResourceExhausted(
                f"{device.name} gave no completion queue of {depth} ({error}); serve fewer"
            ) from None
        self.depth = depth

    def poll(self, count: int) -> list[Done]:
        """What is done now, `count` at most. Raises Unavailable."""
        try:
            found, completions = self.cq.poll(count)
        except self._verbs.error as error:
            raise Unavailable(f"completions of {self._name} cannot be read ({error}); look at the device") from None
        if not found:
            return _NOTHING
        return [_done_of(each) for each in completions]

    def arm(self) -> None:
        """The next completion makes the channel readable. Raises Unavailable."""
        try:
            self.cq.req_notify()
        except self._verbs.error as error:
            raise Unavailable(f"{self._name} does not tell of completions ({error}); look at the device") from None

    def acknowledge(self, count: int) -> None:
        """Acknowledges events that were taken; closing waits for that."""
        self.cq.ack_events(count)

    def close(self) -> None:
        """Closes the queue; its pairs must be closed before."""
        with suppress(self._verbs.error):
            self.cq.close()


def _done_of(completion: Any) -> Done:
    written = completion.opcode == _IS_WRITTEN
    imm = socket.ntohl(completion.imm_data & 0xFFFF_FFFF) if written else 0
    return Done(completion.wr_id, completion.status, written, completion.byte_len, imm)


def _files(kind: str) -> frozenset[int]:
    """Descriptors of verbs: before version 57 pyverbs has no attribute for those of events."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if str(entry.readlink()).startswith(kind):
                found.add(int(entry.name))
    return frozenset(found)


def _new_event_file(before: frozenset[int]) -> int:
    new = sorted(_files(_EVENT_FILE) - before)
    assert new, "each context and each channel has an event descriptor"
    os.set_blocking(new[0], False)
    return new[0]
