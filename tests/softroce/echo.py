"""Both ends of the rdma wire in one process, for what a test must hold in its own hands: the node's memory, its pace.

The node behind the listener echoes after a pause that the test sets; its arenas are the test's to look at. Read
`tests/softroce/test_memory.py` for what is done with it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Self

from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.frame import Load
from fabric.layout import TensorSpec, layout_of
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, Body, RequestId
from fabric.rdma.channel import RdmaChannel
from fabric.rdma.config import RdmaConfig
from fabric.rdma.engine import Engine
from fabric.rdma.listener import RdmaListener
from fabric.transport import Answer, Call, PeerFacts, WireName

if TYPE_CHECKING:
    from collections.abc import Callable
    from mmap import mmap

FACTS = PeerFacts("echo", 9, 1)
CLIENT = 7
LOAD = Load(0, 0, 0, 1)
OPEN_S = 30.0
CONFIG = RdmaConfig(spin_us=0, ack_timeout=16, silent_s=600.0)
"""An emulated CPU beside busy neighbours answers late, and nobody pings here."""


def after(seconds: float) -> Deadline:
    """A deadline from now."""
    return Deadline.after(seconds, time.monotonic())


def make_body(nbytes: int) -> Body:
    """Random bytes as one tensor."""
    layout = layout_of((TensorSpec.of("x", DType.UINT8, (nbytes,)),))
    return Body(layout, os.urandom(nbytes).ljust(layout.body_bytes, b"\0"))


class EchoNode:
    """What a listener takes for a node: a channel with memory, whose answers are what it was asked."""

    alive = True
    wire = WireName.LOCAL
    peer = FACTS

    def __init__(self, world: EchoWorld, nbytes: int) -> None:
        self._world = world
        self.arena = Arena.create(nbytes)

    def call(self, call: Call, deadline: Deadline) -> Answer:
        raise NotImplementedError

    async def call_async(self, call: Call, _deadline: Deadline) -> Answer:
        """Echoes."""
        await asyncio.sleep(self._world.pause_s)
        layout = call.body.layout
        if layout.body_bytes < SMALL_BODY_BYTES:
            return Answer(layout, bytes(call.body.view()), 1, 0, 0, LOAD, WireName.LOCAL)
        lease = Lease.of(self.arena, layout.body_bytes)
        lease.view[: layout.body_bytes] = call.body.view()
        return Answer(layout, lease, 1, 0, 0, LOAD, WireName.LOCAL)

    async def ping(self, _deadline: Deadline) -> Load:
        """Lives."""
        return LOAD

    def watch(self, doubted: Callable[[], None]) -> None:
        """It lives as long as the listener."""

    def cancel(self, request: RequestId) -> None:
        """Too late."""

    def close(self, _deadline: Deadline) -> None:
        """Lets go of its memory."""
        self.arena.retire()
        self.arena.close_fd()

    def abort(self, _reason: str) -> None:
        """The same."""
        self.arena.retire()
        self.arena.close_fd()


class NoLine:
    """Both ends are one process: neither outlives the other."""

    def watch(self, ended: Callable[[str, bool], None]) -> None:
        """It never ends."""

    def close(self) -> None:
        """Nothing is open."""


class _Loop:
    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name)
        self._thread.start()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()


class EchoWorld:  # mutable: `pause_s` and `listener` are the test's to change
    """A listener and callers of it."""

    def __init__(self, page: mmap | None = None, config: RdmaConfig = CONFIG) -> None:
        self.pause_s = 0.0
        self._loops = [_Loop("caller"), _Loop("node")]
        self.node_loop = self._loops[1].loop
        self.caller, self.node = (Engine(one.loop, config) for one in self._loops)
        self.listener = RdmaListener(self.node, lambda _, nbytes: EchoNode(self, nbytes), FACTS, page)
        self._lock = threading.RLock()
        self._number = 0
        self._waiting: set[int] = set()
        self._opened_s = 0.0

    def open(self) -> RdmaChannel:
        """A channel; not more than ten a second, which a listener would refuse."""
        time.sleep(max(0.0, self._opened_s + 0.11 - time.monotonic()))
        self._opened_s = time.monotonic()

        def bootstrap(offer: bytes, _: Deadline) -> tuple[bytes, NoLine]:
            answer = self.listener.bootstrap(CLIENT, offer)
            return asyncio.run_coroutine_threadsafe(answer, self._loops[1].loop).result(OPEN_S)[0], NoLine()

        return RdmaChannel.open(self.caller, bootstrap, CLIENT, after(OPEN_S), (FACTS.node_id, FACTS.node_epoch))

    def offer_at_once(self) -> None:
        """The next channel is not to wait for its turn: the test has lifted the listener's limit."""
        self._opened_s = 0.0

    def request(self, body: Body, reply_bytes: int = 0) -> Call:
        """The next request; all before it are acknowledged that `echoes` does not wait for."""
        with self._lock:
            self._number += 1
            ack_no = min(self._waiting, default=self._number)
            return Call(RequestId(CLIENT, self._number), "echo", body, ack_no, reply_bytes=reply_bytes)

    def echoes(self, channel: RdmaChannel, nbytes: int) -> None:
        """A whole good round, each byte checked."""
        body = make_body(nbytes)
        with self._lock:
            call = self.request(body)
            self._waiting.add(call.id.request_no)
        try:
            answer = channel.call(call, after(OPEN_S))
        finally:
            self._waiting.discard(call.id.request_no)
        memory = answer.memory
        got = memory.view[: len(body.view())] if isinstance(memory, Lease) else memoryview(memory)
        assert got[:nbytes] == body.view()[:nbytes]
        if isinstance(memory, Lease):
            memory.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self.listener.close(3.0), self._loops[1].loop).result(OPEN_S)
        for engine, one in zip((self.caller, self.node), self._loops, strict=True):
            done = threading.Event()

            def end(engine: Engine = engine, done: threading.Event = done) -> None:
                engine.close()
                done.set()

            one.loop.call_soon_threadsafe(end)
            assert done.wait(OPEN_S)
            one.close()
