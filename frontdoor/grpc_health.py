"""gRPC's health service, for the server (the empty name, or the service's) and for each model by its name.

`Watch` tells a change as soon as the engine has told it. Watchers are bounded, since each is a call that stays. This
module never asks an engine anything: it is told. Read `frontdoor/grpc_server.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc

from frontdoor.grpc_service import SERVICE
from frontdoor.messages import message

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from frontdoor.facts import Facts

NAME = "grpc.health.v1.Health"
WATCHERS_MAX = 256
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
_Request = message("HealthCheckRequest")
_Response = message("HealthCheckResponse")

Context = Any
"""A grpc.aio.ServicerContext; grpc has no types."""


class Health:  # mutable: the watchers
    """Answers Check and Watch from what `facts` knows. `changed` is called whenever that may be something new."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._watchers: set[asyncio.Event] = set()
        self._ended = False

    def changed(self) -> None:
        """Something may be ready that was not, or the other way round. On the server's loop."""
        for watcher in self._watchers:
            watcher.set()

    def end(self) -> None:
        """Nothing serves any more: watchers are told so and sent home."""
        self._ended = True
        self.changed()

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def state(self, name: str) -> int:
        """What is to be said of a name."""
        if name in {"", SERVICE}:
            ready = self._facts.ready()
        elif self._facts.knows(name):
            ready = self._facts.model_ready(name, "")
        else:
            return SERVICE_UNKNOWN
        return SERVING if ready and not self._ended else NOT_SERVING

    async def _check(self, raw: bytes, context: Context) -> bytes:
        name = await _name(raw, context)
        state = self.state(name)
        if state == SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no service or model {name[:80]!r}")
        answer: bytes = _Response(status=state).SerializeToString()
        return answer

    async def _watch(self, raw: bytes, context: Context) -> AsyncIterator[bytes]:
        name = await _name(raw, context)
        if len(self._watchers) >= WATCHERS_MAX:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS_MAX} watchers at most; use Check")
        changed = asyncio.Event()
        self._watchers.add(changed)
        said = 0
        try:
            while True:
                state = self.state(name)
                if state != said:
                    said = state
                    yield _Response(status=state).SerializeToString()
                if self._ended:
                    return
                await changed.wait()
                changed.clear()
        finally:
            self._watchers.discard(changed)


async def _name(raw: bytes, context: Context) -> str:
    request = _Request()
    try:
        request.ParseFromString(raw)
    except Exception:  # noqa: BLE001 - each of protobuf's implementations has an error of its own
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "send a HealthCheckRequest")
    name: str = request.service
    return name
