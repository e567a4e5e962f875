"""What the contract suite needs of a wire: a node that echoes and fails on command, channels to it, two ways to call.

Each wire brings one `World` and adds it to WORLDS in `tests/contract/conftest.py`; the tests are the same for all. The
models that the node serves are listed in `tests/contract/echo_node.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from fabric.dtypes import DType
from fabric.hot_loop import HotLoop
from fabric.layout import Layout, TensorSpec, layout_of
from fabric.memory.lease import Lease
from fabric.message import Body, RequestId
from fabric.transport import Answer, Call, Channel

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.memory.arena import Arena

Bytes = npt.NDArray[np.uint8]
GRACE_S = 1.5 if "OVERSPILL_LAB_NODE" not in os.environ else 6.0
"""How much later than its deadline an outcome may come on a machine that runs other tests beside this one, and on one
whose CPU is emulated there."""


class World(Protocol):
    """One node behind one wire. `faults` names what `arm` can spoil in the next final frame; `bytes_budget` is what the
    short form of the big test may move each way."""

    name: str
    faults: tuple[str, ...]
    bytes_budget: int

    def open_channel(self, timeout_s: float = 5.0) -> Channel:
        """A new channel to the node. Whoever opens it closes it."""

    def deadline(self, timeout_s: float) -> Deadline:
        """A deadline by the clock of this world."""

    def arm(self, what: str) -> None:
        """Makes the node fail: `die_hello`, `die_request`, `die_reply`, or one of `faults`. Once."""

    def kill(self) -> None:
        """The node dies now."""

    def pause(self) -> None:
        """The node stands still: it is there, and answers nothing."""

    def resume(self) -> None:
        """It goes on."""

    def restart(self) -> None:
        """A new life of the node, at the same address, in a new epoch."""

    def serves(self) -> bool:
        """Whether the same life of the node is still there."""

    def close(self) -> None:
        """Leaves nothing behind."""


class Caller(Protocol):
    """One of the two ways to call, usable from any thread."""

    def call(self, channel: Channel, call: Call, deadline: Deadline) -> Answer:
        """Waits for the outcome."""

    def start(self, channel: Channel, call: Call, deadline: Deadline) -> Future[Answer]:
        """Begins it elsewhere."""

    def ping(self, channel: Channel, deadline: Deadline) -> Any:
        """The channel's ping."""

    def watch(self, channel: Channel, doubted: Callable[[], None]) -> None:
        """The channel's watch, on the loop."""

    def close(self) -> None:
        """Ends its threads."""


class Loop:
    """An asyncio loop in a thread, as a client process has one."""

    def __init__(self) -> None:
        self.loop = HotLoop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="contract-loop")
        self._thread.start()

    def ping(self, channel: Channel, deadline: Deadline) -> Any:
        return asyncio.run_coroutine_threadsafe(channel.ping(deadline), self.loop).result(30)

    def watch(self, channel: Channel, doubted: Callable[[], None]) -> None:
        async def begin() -> None:
            channel.watch(doubted)

        asyncio.run_coroutine_threadsafe(begin(), self.loop).result(30)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


class BlockingCaller(Loop):
    """Calls in the thread that asks; `start` uses a thread for each."""

    def __init__(self) -> None:
        super().__init__()
        self._threads: list[threading.Thread] = []

    def call(self, channel: Channel, call: Call, deadline: Deadline) -> Answer:
        return channel.call(call, deadline)

    def start(self, channel: Channel, call: Call, deadline: Deadline) -> Future[Answer]:
        future: Future[Answer] = Future()

        def run() -> None:
            try:
                future.set_result(channel.call(call, deadline))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test wants to see it
                future.set_exception(error)

        thread = threading.Thread(target=run, name="contract-call")
        self._threads.append(thread)
        thread.start()
        return future

    def close(self) -> None:
        for thread in self._threads:
            thread.join(30)
        super().close()


class AsyncCaller(Loop):
    """Calls on one loop."""

    def call(self, channel: Channel, call: Call, deadline: Deadline) -> Answer:
        return self.start(channel, call, deadline).result(60)

    def start(self, channel: Channel, call: Call, deadline: Deadline) -> Future[Answer]:
        return asyncio.run_coroutine_threadsafe(channel.call_async(call, deadline), self.loop)


CALLERS: dict[str, Callable[[], Caller]] = {"blocking": BlockingCaller, "async": AsyncCaller}


_CLIENTS = itertools.count(1)


class Client:
    """A channel with request numbers, and bodies made from and compared with one pool of seeded bytes."""

    def __init__(self, world: World, caller: Caller, channel: Channel | None = None, client_id: int = 0) -> None:
        self.world = world
        self.caller = caller
        self.channel = channel if channel is not None else world.open_channel()
        self._client_id = client_id or os.getpid() << 24 | next(_CLIENTS)  # an address is used again
        self._numbers = iter(range(1, 1 << 40))
        self._lock = threading.Lock()

    def next_id(self) -> RequestId:
        with self._lock:
            return RequestId(self._client_id, next(self._numbers))

    def request(
        self, model: str, data: Bytes, place: str = "bytes", foreign: Arena | None = None, reply_bytes: int = 0
    ) -> Call:
        return Call(self.next_id(), model, body_of(data, place, self.channel.arena, foreign), reply_bytes=reply_bytes)

    def call(
        self, model: str, data: Bytes, timeout_s: float = 10.0, place: str = "bytes", reply_bytes: int = 0
    ) -> Answer:
        return self.caller.call(
            self.channel, self.request(model, data, place, None, reply_bytes), self.world.deadline(timeout_s)
        )

    def start(
        self, model: str, data: Bytes, timeout_s: float = 10.0, place: str = "bytes", reply_bytes: int = 0
    ) -> Future[Answer]:
        call = self.request(model, data, place, None, reply_bytes)
        return self.caller.start(self.channel, call, self.world.deadline(timeout_s))

    def arrived(self) -> int:
        """How many requests have come to the node, of this client or of all: they are on their way no more."""
        return int(self.caller.ping(self.channel, self.world.deadline(5.0)).accepted)

    def flips(self, data: Bytes, timeout_s: float = 10.0, place: str = "bytes") -> None:
        """A whole good round, checked."""
        check_flipped(self.call("flip", data, timeout_s, place), data)

    def close(self) -> None:
        self.channel.close(self.world.deadline(1.0))
        del self.channel  # pytest keeps the fixture's value until the leaks are counted, and with it the arena

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def layout_for(nbytes: int) -> Layout:
    """One UINT8 tensor of that size."""
    return layout_of((TensorSpec.of("x", DType.UINT8, (nbytes,)),))


def body_of(data: Bytes, place: str, own: Arena | None, foreign: Arena | None = None) -> Body:
    """`data` as a body: plain bytes, a lease of the channel's own arena (where there is one), or of another one."""
    layout = layout_for(data.nbytes)
    arena = {"bytes": None, "lease": own, "foreign": foreign}[place]
    if arena is None:
        return Body(layout, data.tobytes().ljust(layout.body_bytes, b"\0"))
    lease = Lease.of(arena, max(1, layout.body_bytes))
    np.frombuffer(lease.view, np.uint8)[: data.nbytes] = data
    return Body(layout, lease)


def bytes_of(answer: Answer) -> Bytes:
    """The first tensor's bytes; holds the lease as long as the array lives."""
    memory = answer.memory.view if isinstance(answer.memory, Lease) else answer.memory
    return np.frombuffer(memory, np.uint8)[: answer.layout.specs[0].nbytes]


def check_flipped(answer: Answer, data: Bytes) -> None:
    """The answer is the complement of `data`, in every byte."""
    got = bytes_of(answer)
    assert got.nbytes == data.nbytes
    assert np.array_equal(got, np.invert(data))


def release(answer: Answer) -> None:
    """Gives the reply's slot back."""
    if isinstance(answer.memory, Lease):
        answer.memory.release()


def wait_until(what: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Whether it became true in time."""
    end_s = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.002)
    return True
