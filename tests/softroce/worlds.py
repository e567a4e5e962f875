"""The worlds of the contract suite inside guests: the rdma wire, polled or by events, and the rpc wire beside it.

With one guest the caller and the node share it and its device; with two the node lives in the other guest. The suite
itself is the one of all wires. Read `tests/softroce/test_contract.py` next.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import threading
import time
import weakref
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, TypeVar

from fabric.deadline import Deadline
from fabric.errors import NodeLost, Unavailable
from fabric.memory.arena import Arena
from fabric.rdma.channel import RdmaChannel
from fabric.rdma.config import RdmaConfig
from fabric.rdma.engine import Engine
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig
from tests.contract.world import Loop
from tests.softroce.lab import here
from tests.softroce.node import GuestNode

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from fabric.transport import Channel

_T = TypeVar("_T")
OFFER = struct.Struct("<IQ")
ARENA_BYTES = 192 << 20
EVENTS_ONLY, SPINNING = 0, 50
FENCED_S = 10.0
"""A closed connection is fenced half a second later, whatever its peer does; an emulated machine may need more."""
OFFER_PAUSE_S = 0.11
"""A caller may make ten offers a second."""
NET_S, PATIENCE = 5.0, 4.0
PATIENT_ACK, FAULT_ACK = 18, 16
"""7.5 s until a silent peer is an error, and 1.9 s where that is what a test waits for, instead of a node's 0.5 s:
an emulated peer beside busy neighbours is slow, not silent."""
ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()
"""Those of this process, for `settle`."""


def settle() -> None:
    """Until closed channels are fenced, as far as they are in time: their memory is held until then."""
    end_s = time.monotonic() + FENCED_S
    while stuck := [engine for engine in ENGINES if engine.links]:
        if time.monotonic() > end_s:
            ENGINES.difference_update(stuck)  # the tests that follow are not to be blamed
            raise AssertionError("a closed connection was not fenced")
        time.sleep(0.01)
    for _ in range(2):  # the loop's thread lets go of what it did last when it does something else
        for engine in [one for one in ENGINES if one.in_loop()]:
            done = threading.Event()
            engine.call_soon(done.set)
            done.wait(FENCED_S)
    gc.collect()  # errors that tests caught hold the frames that hold them


def in_a_thread(work: Callable[[], _T]) -> _T:
    """As a service calls: the main thread, which signals interrupt, waits for the loop to take its answers."""
    found: list[_T] = []
    thread = threading.Thread(target=lambda: found.append(work()), name="caller")
    thread.start()
    thread.join()
    return found[0]


class TcpLine:  # mutable: open, then closed
    """The caller's end of a line: the TCP connection that carried the offer. Its other end is the port's, so an end of
    stream tells, as does the reset of a guest that was started again."""

    def __init__(self, sock: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._sock, self._loop = sock, loop
        self._ended: Callable[[str, bool], None] | None = None
        sock.settimeout(0)

    def watch(self, ended: Callable[[str, bool], None]) -> None:
        self._ended = ended
        self._loop.call_soon_threadsafe(self._listen)

    def close(self) -> None:
        self._ended = None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._close)
            return
        self._sock.close()

    def _listen(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.add_reader(self._sock.fileno(), self._readable)

    def _readable(self) -> None:
        told = False
        try:
            told = not self._sock.recv(1)
        except BlockingIOError:
            return
        except OSError:
            pass
        ended = self._ended
        self._close()
        if ended is not None:
            ended("end of stream" if told else "reset", told)

    def _close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()


class GuestWorld:
    """What both wires have in common."""

    faults: tuple[str, ...] = ("foreign_id", "outside", "length", "bit", "cut", "oversize", "noise", "magic", "version")

    def __init__(self, node: GuestNode) -> None:
        self.node = node

    def deadline(self, timeout_s: float) -> Deadline:
        """Short ones are what a test is about; long ones only keep it from hanging, and an emulated CPU is slow."""
        return Deadline.after(timeout_s * (PATIENCE if timeout_s >= NET_S else 1.0), time.monotonic())

    def arm(self, what: str) -> None:
        self.node.arm(what)

    def kill(self) -> None:
        self.node.kill()

    def pause(self) -> None:
        self.node.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.node.signal(signal.SIGCONT)

    def restart(self) -> None:
        self.node.end()
        self.node.start()

    def serves(self) -> bool:
        return self.node.serves()

    def close(self) -> None:
        self.node.end()


class RdmaWorld(GuestWorld):
    """One engine for all channels, as a process has one."""

    bytes_budget = 64 << 20

    def __init__(self, spin_us: int, ack_timeout: int = PATIENT_ACK, arena_bytes: int = ARENA_BYTES) -> None:
        self._arena_bytes = arena_bytes
        self._opened_s = 0.0
        super().__init__(GuestNode(here.nodes() - 1, "tests.softroce.rdma_port", str(spin_us), str(ack_timeout)))
        self.name = f"rdma{here.nodes()}"
        self._loop = Loop()
        self.engine = Engine(self._loop.loop, RdmaConfig(spin_us=spin_us, ack_timeout=ack_timeout))
        ENGINES.add(self.engine)
        # The engine keeps its device for its life: no test is to be blamed for that.
        self.open_channel(60.0).close(self.deadline(5.0))
        settle()

    def open_channel(self, timeout_s: float = 15.0) -> Channel:
        expect = (self.node.node_id, self.node.node_epoch)
        time.sleep(max(0.0, self._opened_s + OFFER_PAUSE_S - time.monotonic()))
        self._opened_s = time.monotonic()
        arena = Arena.create(self._arena_bytes)
        return RdmaChannel.open(self.engine, self.bootstrap, os.getpid(), self.deadline(timeout_s), expect, arena)

    def bootstrap(self, offer: bytes, deadline: Deadline) -> tuple[bytes, TcpLine]:
        """Carries an offer over the network that stays when RDMA's cable is pulled."""
        left_s = max(0.001, deadline.remaining_s(time.monotonic()))
        try:
            with ExitStack() as failed:
                address = (here.plain_address(self.node.where), self.node.port)
                line = failed.enter_context(socket.create_connection(address, left_s))
                line.settimeout(left_s)
                line.sendall(OFFER.pack(len(offer), os.getpid()) + offer)
                size, _ = OFFER.unpack(_exactly(line, OFFER.size))
                answer = _exactly(line, size)
                failed.pop_all()
                return answer, TcpLine(line, self._loop.loop)
        except OSError as error:
            raise Unavailable(f"the port does not answer ({error})") from None

    def close(self) -> None:
        loop = self._loop.loop
        done = socket.socketpair()

        def end() -> None:
            self.engine.close()
            done[1].send(b"x")

        loop.call_soon_threadsafe(end)
        done[0].settimeout(10)
        done[0].recv(1)
        for each in done:
            each.close()
        self._loop.close()
        super().close()


class RpcWorld(GuestWorld):
    """The wire that RDMA falls back to."""

    name = "rpc"
    bytes_budget = 32 << 20

    def __init__(self) -> None:
        super().__init__(GuestNode(here.nodes() - 1, "tests.contract.rpc_port", "PORT", "0.0.0.0"))

    def open_channel(self, timeout_s: float = 15.0) -> Channel:
        expect = (self.node.node_id, self.node.node_epoch)
        address = f"{here.plain_address(self.node.where)}:{self.node.port}"
        arena = Arena.create(ARENA_BYTES)
        return RpcChannel.open(address, os.getpid(), self.deadline(timeout_s), RpcConfig(), arena, expect)


def _exactly(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = line.recv(size - len(data))
        if not part:
            raise NodeLost("the port hung up")
        data += part
    return data
