"""A node behind the rpc port, small enough to see through: it echoes, counts its runs, and waits when asked to.

The port is the real one, and so are its sockets; only the way from port to node is this in-process channel. It is also
a program: `python -m tests.integration.rpc_node` serves in a process of its own, which a test or a benchmark may kill.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.errors import Cancelled, DeadlineExceeded, Fate, ModelFailed, NodeLost
from fabric.frame import Load
from fabric.layout import TensorSpec, layout_of
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES
from fabric.rpc_fallback.config import RpcServerConfig
from fabric.rpc_fallback.server import RpcServer
from fabric.transport import Answer, PeerFacts, WireName

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.message import RequestId
    from fabric.transport import Call

FACTS = PeerFacts("node-a", 7, 1)
LOAD = Load(3, 2, 1000, 1)


class EchoChannel:
    """A channel whose node answers `echo` with its input, `touch` with 64 bytes, `big:N` with N bytes, `wait:S` after S
    seconds with its input; other models fail."""

    def __init__(self, node: EchoNode, arena: Arena | None) -> None:
        self.wire = WireName.SIM
        self.peer = node.facts
        self.arena = arena
        self.alive = True
        self.cancelled: set[RequestId] = set()
        self._node = node
        self._changed = threading.Condition()

    def call(self, call: Call, deadline: Deadline) -> Answer:
        self._node.runs[call.id] += 1
        kind, _, value = call.model.partition(":")
        if kind == "wait":
            self._wait(call.id, Deadline(time.monotonic() + float(value)), deadline)
        elif kind == "touch":
            return self._answer(call, bytes(call.body.view()[:64]).ljust(64, b"\0"))
        elif kind == "big":
            return self._answer(call, (b"0123456789abcdef" * (int(value) // 16 + 1))[: int(value)])
        elif kind == "bug":
            raise KeyError(kind)
        elif kind != "echo":
            raise ModelFailed(f"model {kind} failed as it was asked to")
        return self._answer(call, call.body.view())

    def _answer(self, call: Call, output: bytes | memoryview) -> Answer:
        size = len(output)
        same = size == call.body.layout.body_bytes
        layout = call.body.layout if same else layout_of((TensorSpec("out", DType.UINT8, (size,), size),))
        memory: bytes | Lease
        if size >= SMALL_BODY_BYTES and self.arena is not None:
            memory = Lease.of(self.arena, layout.body_bytes)
            memory.view[:size] = output
        else:
            memory = bytes(output).ljust(layout.body_bytes, b"\0")
        return Answer(layout, memory, 1, 5, 6, LOAD, WireName.SIM)

    def _wait(self, request: RequestId, until: Deadline, deadline: Deadline) -> None:
        with self._changed:
            while not until.expired(now := time.monotonic()):
                if not self.alive:
                    raise NodeLost("the node was killed")
                if request in self.cancelled:
                    raise Cancelled("given up", Fate.NEVER_RAN)
                if deadline.expired(now):
                    raise DeadlineExceeded("too late")
                self._changed.wait(until.earlier(deadline).remaining_s(now))

    def cancel(self, request: RequestId) -> None:
        with self._changed:
            self.cancelled.add(request)
            self._changed.notify_all()

    async def call_async(self, call: Call, deadline: Deadline) -> Answer:
        return self.call(call, deadline)

    async def ping(self, deadline: Deadline) -> Load:
        return LOAD

    def watch(self, doubted: Callable[[], None]) -> None:
        """It lives as long as the port."""

    def close(self, deadline: Deadline) -> None:
        self.abort("closed")

    def abort(self, reason: str) -> None:
        with self._changed:
            self.alive = False
            self._changed.notify_all()
        self._node.open.discard(self)


class EchoNode:
    """Opens channels, and remembers what ran."""

    def __init__(self, facts: PeerFacts = FACTS, *, arenas: bool = True) -> None:
        self.facts = facts
        self.runs: Counter[RequestId] = Counter()
        self.open: set[EchoChannel] = set()
        self.opened = 0
        self._arenas = arenas

    def open_channel(self, client_id: int, arena_bytes: int) -> EchoChannel:
        self.opened += 1
        channel = EchoChannel(self, Arena.create(arena_bytes) if self._arenas else None)
        self.open.add(channel)
        return channel


@contextlib.contextmanager
def serving(node: EchoNode, config: RpcServerConfig) -> Iterator[tuple[RpcServer, int]]:
    server = RpcServer(config, node.open_channel, node.facts)
    port = server.start()
    try:
        yield server, port
    finally:
        server.stop(1.0)


def main() -> None:
    """Serves until its input ends; prints its port."""
    with serving(EchoNode(), RpcServerConfig(lanes="--no-lanes" not in sys.argv)) as (_, port):
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
