"""A caller that left before its executor was lost: its slots stay out of use until the node says that nobody writes.

The node's end of the socket is the test's, so that each order of its frames can be had.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import DeadlineExceeded, ExecutorLost
from fabric.frame import HELD, MAYBE_SECOND, RELEASED, ErrorFrame, Load, encode_error
from fabric.local.pooled import PooledSocket
from fabric.local.sockets import seqpacket_pair
from fabric.local.unclaimed import Unclaimed
from fabric.memory.arena import Arena
from fabric.message import RequestId, small_body
from fabric.reply_sizes import ReplySizes
from fabric.transport import Call
from tests.integration.nodes import soon

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

pytestmark = pytest.mark.leaks("the arena is closed by a fixture, after the test's frame let go of its views")

REPLY_BYTES = 1 << 20


@pytest.fixture
def ends() -> Iterator[tuple[PooledSocket, socket.socket]]:
    ours, theirs = seqpacket_pair()
    arena = Arena.create(1 << 24)
    with ours, theirs:
        yield PooledSocket(ours, arena), theirs
    arena.close_fd()


def says(node: socket.socket, number: int, flags: int) -> None:
    lost = ExecutorLost("the executor was ended by signal 9")
    node.send(encode_error(ErrorFrame(1, number, 1, lost, Load(1, 1, 0, 1)), flags | MAYBE_SECOND))


def ask(pooled: PooledSocket, number: int, timeout_s: float) -> None:
    call = Call(RequestId(1, number), "m", small_body(()), reply_bytes=REPLY_BYTES)
    try:
        pooled.exchange(call, soon(timeout_s), 1, ReplySizes())
    finally:
        pooled.give_up()


@pytest.mark.parametrize("in_time", [True, False])
def test_slots_of_a_lost_request_come_back_with_its_release(
    ends: tuple[PooledSocket, socket.socket], in_time: bool
) -> None:
    pooled, node = ends
    arena, unclaimed = pooled.places.arena, Unclaimed()
    before = arena.lent_bytes()
    if in_time:
        says(node, 5, HELD)
    with pytest.raises(ExecutorLost if in_time else DeadlineExceeded):
        ask(pooled, 5, 10.0 if in_time else 0.01)
    if not in_time:
        says(node, 5, HELD)
    assert not pooled.ended(unclaimed)
    assert arena.lent_bytes() >= before + REPLY_BYTES, "its executor may still write there"
    says(node, 5, RELEASED)
    give_up_at = time.monotonic() + 10.0
    while not pooled.ended(unclaimed):
        assert time.monotonic() < give_up_at
    assert arena.lent_bytes() == before
    assert not pooled.fault
