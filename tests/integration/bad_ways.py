"""The ways to ask one node: a blocking and an asynchronous router, and a bare channel, each over local and over rpc.

A router checks inputs before it sends them and retries; a channel does neither, so that the node's own checks are met.
Read `tests/integration/test_bad_input.py` next.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from discovery.registry import open_registry
from fabric.deadline import Deadline
from fabric.link.wires import LinkConfig
from fabric.local.channel import LocalChannel
from fabric.memory.lease import Lease, tensor_view
from fabric.message import RequestId, small_body, tensors_of
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig
from fabric.transport import Call, WireName
from overspill import AsyncRouter, Router
from router.config import RouterConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fabric.errors import OverspillError
    from fabric.transport import Channel

    Arrays = dict[str, np.ndarray[Any, Any]]

_ids = itertools.count(1 << 40)


class Way(Protocol):
    """One way to ask. `wire` is what its replies must have come by."""

    wire: WireName

    def infer(self, model: str, inputs: Mapping[str, object], timeout_s: float = 20.0, priority: int = 0) -> Arrays:
        """The outputs, copied. Raises OverspillError."""

    def close(self) -> None:
        """Leaves nothing behind."""


class RouterWay:
    """`Router`, kept to one wire."""

    def __init__(self, registry: str, wire: WireName) -> None:
        self.wire = wire
        self.router = Router.connect(registry, config=only(wire))

    def infer(self, model: str, inputs: Mapping[str, object], timeout_s: float = 20.0, priority: int = 0) -> Arrays:
        with self.router.infer(model, inputs, timeout_s=timeout_s, priority=priority) as reply:
            assert reply.trace.wire == self.wire.value
            return {name: np.array(reply[name]) for name in reply}

    def close(self) -> None:
        self.router.close()


class AsyncWay:
    """`AsyncRouter`, kept to one wire, on a loop in a thread of its own."""

    def __init__(self, registry: str, wire: WireName) -> None:
        self.wire = wire
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="bad-ways")
        self._thread.start()
        self._router = self._run(self._connect(registry))

    async def _connect(self, registry: str) -> AsyncRouter:
        return await AsyncRouter.connect(registry, config=only(self.wire))

    def _run(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def infer(self, model: str, inputs: Mapping[str, object], timeout_s: float = 20.0, priority: int = 0) -> Arrays:
        return self._run(self._infer(model, inputs, timeout_s, priority))

    async def _infer(self, model: str, inputs: Mapping[str, object], timeout_s: float, priority: int) -> Arrays:
        with await self._router.infer(model, inputs, timeout_s=timeout_s, priority=priority) as reply:
            assert reply.trace.wire == self.wire.value
            return {name: np.array(reply[name]) for name in reply}

    def close(self) -> None:
        self._run(self._router.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class ChannelWay:
    """A channel to the node, without any check on the way."""

    def __init__(self, registry: str, wire: WireName) -> None:
        self.wire = wire
        self.client_id = next(_ids)
        self.channel = self._open(registry)
        self._numbers = itertools.count(1)

    def _open(self, registry: str) -> Channel:
        (instance,) = open_registry(registry).read()
        deadline = Deadline.after(20.0, time.monotonic())
        expect = (instance.node_id, instance.node_epoch)
        if self.wire is WireName.LOCAL:
            return LocalChannel.open(instance.local, self.client_id, deadline, expect=expect)
        return RpcChannel.open(instance.rpc, self.client_id, deadline, RpcConfig(), None, expect)

    def infer(self, model: str, inputs: Mapping[str, object], timeout_s: float = 20.0, priority: int = 0) -> Arrays:
        body = small_body(tensors_of(inputs))
        call = Call(RequestId(self.client_id, next(self._numbers)), model, body, priority=priority)
        return self.call(call, timeout_s)

    def call(self, call: Call, timeout_s: float = 20.0) -> Arrays:
        """Sends any call."""
        answer = self.channel.call(call, Deadline.after(timeout_s, time.monotonic()))
        assert answer.wire is self.wire
        leased = isinstance(answer.memory, Lease)
        memory = answer.memory.view if leased else memoryview(answer.memory)
        outputs = {
            spec.name: np.array(tensor_view(memory, spec, offset))
            for spec, offset in zip(answer.layout.specs, answer.layout.offsets, strict=True)
        }
        if leased:
            answer.memory.release()
        return outputs

    def close(self) -> None:
        self.channel.close(Deadline.after(2.0, time.monotonic()))


KINDS: dict[str, type[RouterWay | AsyncWay | ChannelWay]] = {
    "router": RouterWay,
    "async": AsyncWay,
    "channel": ChannelWay,
}
NAMES = tuple(f"{kind}-{wire.value}" for kind in KINDS for wire in (WireName.LOCAL, WireName.RPC))


class Ways:
    """All ways to the one node of a registry, each opened when it is first asked for."""

    def __init__(self, registry: str) -> None:
        self._registry = registry
        self._open: dict[str, Way] = {}
        self._stack = ExitStack()

    def __getitem__(self, name: str) -> Way:
        if name not in self._open:
            kind, _, wire = name.partition("-")
            made = self._open[name] = KINDS[kind](self._registry, WireName(wire))
            self._stack.callback(made.close)
        return self._open[name]

    def close(self) -> None:
        """Closes them."""
        self._stack.close()


def only(wire: WireName, **settings: int) -> RouterConfig:
    """A router that may use one wire."""
    link = LinkConfig(local=wire is WireName.LOCAL, rpc=wire is WireName.RPC)
    return RouterConfig(link=link, seed=7, **settings)


_FOREIGN = re.compile(r"Traceback|\b(?:[a-z_]+\.)+[A-Z]\w*|\b[A-Z]\w+(?:Error|Exception)\b|InvalidProtobuf|<class ")
"""A traceback, a dotted class, or a class name of somebody's exception."""


def check_sentence(error: OverspillError | str, *words: str, quotes_model: bool = False) -> None:
    """The message is one sentence that holds each of `words`. `quotes_model`: it may name what a model's own code
    raised, because its author is who reads it."""
    text = str(error)
    assert text == text.strip()
    assert "\n" not in text
    assert 20 < len(text) < 700, text
    assert not re.search(r"[.!?] [A-Z]", text), f"more than one sentence: {text}"
    assert quotes_model or not _FOREIGN.search(text), f"shows a foreign exception: {text}"
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"
