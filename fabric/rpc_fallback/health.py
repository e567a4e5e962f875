"""gRPC's own health service, so that load balancers and Kubernetes can ask a port whether it serves.

Its two messages are so small (one text field in, one number out) that they are read and written here by hand, which
keeps protobuf out of a plain install. Wire format: protobuf.dev/programming-guides/encoding. This module never asks
the node: the port tells it. Read `fabric/rpc_fallback/server.py` next.
"""

from __future__ import annotations

from enum import IntEnum
from threading import Condition
from typing import TYPE_CHECKING

import grpc

from fabric.rpc_fallback.wire import SERVICE

if TYPE_CHECKING:
    from collections.abc import Iterator

WATCHERS_MAX = 4
"""Each watcher holds one of the port's threads."""
_NAMES = frozenset({"", SERVICE})
_FIELD_1_TEXT = 0x0A
_FIELD_1_NUMBER = 0x08


class Serving(IntEnum):
    """The states of grpc.health.v1."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


def service_name(request: bytes) -> str | None:
    """The name in a HealthCheckRequest; None when the bytes are none. Names over 127 bytes are nobody's here."""
    if not request:
        return ""
    if len(request) < 2 or request[0] != _FIELD_1_TEXT or request[1] > 127 or len(request) != 2 + request[1]:
        return None
    return request[2:].decode(errors="replace")


def response(state: Serving) -> bytes:
    """A HealthCheckResponse."""
    return bytes((_FIELD_1_NUMBER, state))


class Health:  # mutable: the state that watchers wait for
    """Answers Check and Watch."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._state = Serving.NOT_SERVING
        self._ended = False
        self._watchers = 0

    def tell(self, state: Serving, *, end: bool = False) -> None:
        """Sets the state; `end` sends every watcher home."""
        with self._changed:
            self._state, self._ended = state, end
            self._changed.notify_all()

    def handler(self) -> grpc.GenericRpcHandler:
        """The service, for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            "grpc.health.v1.Health",
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def _check(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        name = service_name(request)
        if name is None:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "send a HealthCheckRequest")
        if name not in _NAMES:
            context.abort(grpc.StatusCode.NOT_FOUND, f"services here: {SERVICE} and the empty name")
        return response(self._state)

    def _watch(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        with self._changed:
            if self._watchers >= WATCHERS_MAX:
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{WATCHERS_MAX} watchers at most; use Check")
            self._watchers += 1
        told: Serving | None = None
        try:
            context.add_callback(self._wake)
            while context.is_active():
                state = self._state if service_name(request) in _NAMES else Serving.SERVICE_UNKNOWN
                if state is not told:
                    told = state
                    yield response(state)
                with self._changed:
                    if self._ended:
                        return
                    if context.is_active() and self._state is state:
                        self._changed.wait(60.0)
        finally:
            with self._changed:
                self._watchers -= 1

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
