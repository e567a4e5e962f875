"""A node as an engine: requests go over the local wire like those of any other caller, in one session.

The node checks, queues, cancels and counts them like all others; nothing here retries, because what may be sent again
is for whoever asked to decide. What models there are, and figures of them, come over the node's control socket
(`frontdoor/desk.py`). This module never speaks to a client. Read `frontdoor/grpc_service.py` next.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from functools import partial
from typing import TYPE_CHECKING

from fabric.control import MemoryFacts
from fabric.deadline import Deadline
from fabric.errors import Draining
from fabric.layout import layout_of
from fabric.local.channel import LocalChannel
from fabric.memory.lease import Lease
from fabric.message import SMALL_BODY_BYTES, Body, RequestId
from fabric.transport import Call
from frontdoor.executor_gauges import gauges_of
from frontdoor.failures import Refusal, Status
from frontdoor.room import Room

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from fabric.control import ModelStatistics, TracedRun
    from fabric.layout import Layout, TensorSpec
    from fabric.memory.arena import Arena
    from fabric.transport import Answer
    from frontdoor.desk import Desk
    from frontdoor.engine import Gauge, Model
    from frontdoor.traces import Trace

OPEN_TIMEOUT_S = 5.0
_NOTHING = Body(layout_of(()), b"")
_ROOM_SHARE = 4
"""An input's slot and its reply's, each rounded up to a power of two: of a quarter of the arena both find room."""


class NodeEngine:  # mutable: owns a session
    """The node that listens at `socket`, known as `expect` (node id, node epoch). `desk` tells of its models."""

    def __init__(self, socket: str, expect: tuple[str, int], desk: Desk, arena_bytes: int) -> None:
        self._socket = socket
        self._expect = expect
        self._desk = desk
        self._arena_bytes = arena_bytes
        self._client_id = secrets.randbits(64) or 1
        self._number = 0
        self._out: dict[int, None] = {}
        self._channel: LocalChannel | None = None
        self._opening = asyncio.Lock()
        self._room = Room(arena_bytes // _ROOM_SHARE)

    @property
    def ready(self) -> bool:
        """Whether the node says so."""
        return self._desk.ready

    def models(self) -> tuple[Model, ...]:
        """What the node said last."""
        return self._desk.models

    def untold(self, name: str) -> None:
        """None: the node tells of all that it has."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Has `call` called with each news of the node."""
        self._desk.on_news(call)

    async def fresh(self) -> None:
        """Asks the node what models it has."""
        await self._desk.fresh()

    async def traced(self) -> tuple[TracedRun, ...]:
        """What the node remembers of traced requests."""
        return await self._desk.traced()

    async def refreshed(self, model: Model) -> Model:
        """Asks the node for the model's configuration again."""
        return await self._desk.refreshed(model)

    async def config(self, model: Model) -> str:
        """The node's own word."""
        return await self._desk.config(model)

    async def statistics(self, name: str, version: str) -> tuple[ModelStatistics, ...]:
        """The node's figures."""
        return await self._desk.statistics(name, version)

    async def gauges(self) -> tuple[Gauge, ...]:
        """What the node's executors have been through."""
        return gauges_of(await self._desk.executors())

    async def load(self, name: str, config: str) -> None:
        """Has the node load a model."""
        await self._desk.load(name, config)

    async def unload(self, name: str) -> None:
        """Has the node take a model out of service."""
        await self._desk.unload(name)

    async def open_memory(self, handle: bytes, device_id: int, nbytes: int) -> int:
        """Has an executor of the device open it, for this session alone."""
        if not any(each.card for each in await self._desk.executors()):
            told = "no executor here has a CUDA device; use system shared memory, or raw tensors"
            raise Refusal(Status.UNIMPLEMENTED, told)
        await self.channel()  # what is registered ends with the session, so there must be one
        return await self._desk.open_memory(MemoryFacts(self._client_id, handle, device_id, nbytes))

    def close_memory(self, number: int) -> None:
        """Tells the node; what it does not hear ends with the session."""
        self._desk.close_memory(MemoryFacts(self._client_id, number=number))

    async def stage(self, model: Model, specs: tuple[TensorSpec, ...], deadline: Deadline) -> NodeStaged:
        """Memory in the session's arena. What is small gets a private copy, and so waits for no room there."""
        if self._desk.draining:
            raise Draining("the node is draining; send the request to another one")
        layout = layout_of(specs)
        channel = await self.channel()
        if layout.body_bytes < SMALL_BODY_BYTES:
            return NodeStaged(self, channel, model.name, layout, bytearray(layout.body_bytes), lambda: None)
        await self._room.take(layout.body_bytes, deadline)
        try:
            memory = Lease.of(channel.arena, layout.body_bytes)
        except BaseException:  # whatever it was, the room is free again
            self._room.give_back(layout.body_bytes)
            raise
        give_back = partial(self._room.give_back, layout.body_bytes)
        return NodeStaged(self, channel, model.name, layout, memory, give_back)

    async def channel(self) -> LocalChannel:
        """The open session. Raises Unavailable when the node gives none."""
        if self._channel is not None and self._channel.alive:
            return self._channel
        async with self._opening:
            if self._channel is None or not self._channel.alive:
                self._channel = await asyncio.to_thread(self._open)
        return self._channel

    def _open(self) -> LocalChannel:
        deadline = Deadline.after(OPEN_TIMEOUT_S, time.monotonic())
        return LocalChannel.open(self._socket, self._client_id, deadline, self._arena_bytes, self._expect)

    def began(self) -> tuple[RequestId, int]:
        """The id of a new request, and the number below which all earlier ones have their answers."""
        self._number += 1
        self._out[self._number] = None
        return RequestId(self._client_id, self._number), next(iter(self._out))

    def ended(self, request: RequestId) -> None:
        """A request has its final answer, or nobody waits for it any more."""
        self._out.pop(request.request_no, None)

    async def close(self) -> None:
        """Ends the session."""
        if self._channel is not None:
            self._channel.close(Deadline.after(0.0, time.monotonic()))


class NodeStaged:  # mutable: run, then released once
    """The inputs of one request to a node."""

    __slots__ = ("_channel", "_engine", "_give_back", "_layout", "_memory", "_model", "_released")

    def __init__(
        self, engine: NodeEngine, channel: LocalChannel, model: str, layout: Layout, memory: bytearray | Lease,
        give_back: Callable[[], None],
    ) -> None:  # fmt: skip
        self._engine = engine
        self._channel = channel
        self._model = model
        self._layout = layout
        self._memory = memory
        self._give_back = give_back
        self._released = False

    @property
    def views(self) -> tuple[memoryview, ...]:
        """Where each input is to be written."""
        whole = self._memory.view if isinstance(self._memory, Lease) else memoryview(self._memory)
        places = zip(self._layout.specs, self._layout.offsets, strict=True)
        return tuple(whole[offset : offset + spec.nbytes] for spec, offset in places if not spec.referred)

    @property
    def arena(self) -> Arena | None:
        """The session's, where they lie in it."""
        return self._memory.arena if isinstance(self._memory, Lease) else None

    async def run(self, deadline: Deadline, priority: int, trace: Trace | None = None) -> NodeAnswered:
        """Sends the request once."""
        memory = self._memory if isinstance(self._memory, Lease) else bytes(self._memory)
        request, ack_no = self._engine.began()
        if trace is not None:
            trace.request = request
        try:
            call = Call(request, self._model, Body(self._layout, memory), ack_no, priority, traced=trace is not None)
            return NodeAnswered(await self._channel.call_async(call, deadline))
        finally:
            self._engine.ended(request)

    async def stream(
        self, deadline: Deadline, priority: int, trace: Trace | None = None
    ) -> AsyncGenerator[NodeAnswered, None]:
        """Sends the request, and asks the same id again for each further answer; the last one has no tensors."""
        memory = self._memory if isinstance(self._memory, Lease) else bytes(self._memory)
        body = Body(self._layout, memory)
        request, ack_no = self._engine.began()
        if trace is not None:
            trace.request = request
        try:
            while True:
                call = Call(
                    request, self._model, body, ack_no, priority, stream=True, traced=trace is not None
                )  # fmt: skip
                answered = NodeAnswered(await self._channel.call_async(call, deadline))
                if not answered.outputs:
                    answered.release()
                    return
                yield answered
                body = _NOTHING  # the model has its inputs
        finally:
            self._engine.ended(request)

    def release(self) -> None:
        """Gives the memory back; the node, which may still read it after a cancel, keeps the slot until it has
        answered."""
        if self._released:
            return
        self._released = True
        if isinstance(self._memory, Lease):
            self._memory.release()
        self._give_back()


class NodeAnswered:
    """One reply of a node."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def outputs(self) -> tuple[tuple[TensorSpec, memoryview], ...]:
        """Outputs where they lie."""
        memory, layout = self._answer.memory, self._answer.layout
        whole = (memory.view if isinstance(memory, Lease) else memoryview(memory)).toreadonly()
        places = zip(layout.specs, layout.offsets, strict=True)
        return tuple((spec, whole[offset : offset + spec.nbytes]) for spec, offset in places)

    @property
    def arena(self) -> Arena | None:
        """The session's, where they lie in it."""
        memory = self._answer.memory
        return memory.arena if isinstance(memory, Lease) else None

    def release(self) -> None:
        """Gives the reply's slot back."""
        if isinstance(self._answer.memory, Lease):
            self._answer.memory.release()
