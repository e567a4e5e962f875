"""Asks a port's health service whether its node is ready: one call, no session, no arena.

It is what a container engine or a supervisor runs every few seconds, so it imports no more than it needs. This module
never says what to do about a node that is not ready. Read `fabric/rpc_fallback/health.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import grpc

from fabric.errors import ProtocolError
from fabric.rpc_fallback.config import host_of
from fabric.rpc_fallback.health import Serving
from fabric.rpc_fallback.session import grpc_channel
from fabric.rpc_fallback.status import error_of

if TYPE_CHECKING:
    from fabric.rpc_fallback.config import RpcConfig


def ask(address: str, config: RpcConfig, timeout_s: float) -> Serving:
    """What the port at `address` (HOST:PORT) says of its node.

    Raises ConfigError for an address or certificate that is none, DeadlineExceeded after `timeout_s`, and what
    `fabric/rpc_fallback/status.py` makes of gRPC's other answers.
    """
    host_of(address)
    channel = grpc_channel(address, config)
    try:
        answer = channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=timeout_s)
    except grpc.RpcError as error:
        raise error_of(error.code(), error.details() or "") from None
    finally:
        channel.close()
    try:
        (_, number) = answer
        return Serving(number)
    except ValueError:
        raise ProtocolError("the health service answered in a form that is not ours; correct the address") from None
