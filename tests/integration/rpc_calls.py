"""Requests, answers and channels, as the tests of the rpc wire make them."""

from __future__ import annotations

import gc
import socket
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.deadline import Deadline
from fabric.message import RequestId, small_body, tensors_of
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from fabric.transport import Answer, Call
from tests.integration.rpc_node import EchoNode, serving

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.memory.arena import Arena


def soon(timeout_s: float = 20.0) -> Deadline:
    return Deadline(time.monotonic() + timeout_s)


def request(number: int, size: int, model: str = "echo", client_id: int = 1, **words: int) -> Call:
    data = np.random.default_rng(number).integers(0, 256, size, np.uint8)
    return Call(RequestId(client_id, number), model, small_body(tensors_of({"x": data})), **words)


def got(answer: Answer) -> bytes:
    """The reply's bytes, after which its memory is given back."""
    size = answer.layout.specs[0].nbytes
    if isinstance(answer.memory, bytes):
        return answer.memory[:size]
    copied = bytes(answer.memory.view[:size])
    answer.memory.release()
    return copied


def wanted(call: Call) -> bytes:
    return bytes(call.body.view()[: call.body.layout.specs[0].nbytes])


def tell_as_a_stranger(port: int, words: bytes, *, half_close: bool = False) -> None:
    """Says `words` to a TCP port and reads until it hangs up. It may do so at any moment, before we have sent as well:
    what a socket says of that (reset, broken pipe, not connected) is as good an end as the end of the stream."""
    with socket.create_connection(("127.0.0.1", port), 5.0) as stranger:
        stranger.settimeout(20.0)
        try:
            stranger.sendall(words)
            if half_close:
                stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(4096):
                pass
        except TimeoutError:
            pytest.fail("the port does not hang up")
        except OSError:
            return


@contextmanager
def channel_to(
    port: int, config: RpcConfig | None = None, arena: Arena | None = None, client_id: int = 1
) -> Iterator[RpcChannel]:
    made = RpcChannel.open(f"127.0.0.1:{port}", client_id, soon(), config or RpcConfig(), arena)
    try:
        yield made
    finally:
        made.close(soon(1.0))


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    """The traceback of an expected error holds frames, and they hold arenas: those circles are no leaks."""
    yield
    gc.collect()


@pytest.fixture
def node() -> EchoNode:
    return EchoNode()


@pytest.fixture
def port(node: EchoNode) -> Iterator[int]:
    with serving(node, RpcServerConfig()) as (_, made):
        yield made
