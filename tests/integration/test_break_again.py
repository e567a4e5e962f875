"""Requests that were given up, answered meanwhile, and asked again: their replies are sent from where they first lay.

A large reply stays in the slot of its first asker, who has left by then. Others want slots of that size at once, so
the bytes are right only if the channel holds that slot until the request is acknowledged.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import DeadlineExceeded
from fabric.local import pooled
from fabric.memory.lease import Lease, tensors
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Answer, Call
from tests.integration.nodes import Client, RunningNode, client_of, running_node, soon, wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPLY_BYTES = 1 << 20
TIMEOUT_S = 0.25
"""Time enough to be sent, and less than the runs that are given up take."""

FILL = """
import time
import numpy as np
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        ms, value = inputs["x"][:2]
        y = outputs.allocate("y", np.int64, (1 << 17,))
        time.sleep(ms / 1000)
        y[:] = value
"""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[RunningNode]:
    """A node with the model `fill`, which answers with a mebibyte of what it is asked for."""
    write_model(tmp_path / "models", "fill", FILL)
    with running_node(tmp_path, tmp_path / "models") as node:
        yield node


@pytest.fixture
def filled(node: RunningNode) -> Iterator[Client]:
    """A client of that node."""
    with client_of(node) as client:
        yield client


def call_of(number: int, ms: int, value: int, ack_no: int = 0, client_id: int = 7) -> Call:
    """A request for a mebibyte of `value` after `ms`."""
    body = small_body(tensors_of({"x": np.array([ms, value], np.int64)}))
    return Call(RequestId(client_id, number), "fill", body, ack_no=ack_no, reply_bytes=REPLY_BYTES)


def values_of(answer: Answer) -> list[int]:
    """The distinct values in a reply."""
    assert isinstance(answer.memory, Lease)
    (y,) = tensors(answer.memory.view, answer.layout)
    found: list[int] = np.unique(y).tolist()
    del y
    answer.memory.release()
    return found


def scribble(client: Client) -> None:
    """Takes every free slot of that size, one after the other, as other callers' inputs would, and writes to it."""
    arena = client.channel.arena
    taken = [Lease.of(arena, REPLY_BYTES) for _ in range(8)]
    for lease in taken:
        np.frombuffer(lease.view, np.int64)[:] = -1
        lease.release()


def settle(client: Client, number: int) -> None:
    """Waits until every request that was given up has its final frame; another call looks for it."""
    wait_until(
        lambda: values_of(client.channel.call(call_of(number, 0, 0), soon(20.0))) == [0] and not client.channel.zombies
    )


def block(seconds: float) -> None:
    """Keeps the loop from looking at anything."""
    time.sleep(seconds)


def test_a_reply_that_came_too_late_is_whole_when_it_is_asked_again(filled: Client) -> None:
    client = filled
    with pytest.raises(DeadlineExceeded):
        client.channel.call(call_of(1, 400, 11), soon(TIMEOUT_S))
    settle(client, 2)
    scribble(client)
    assert values_of(client.channel.call(call_of(1, 400, 11), soon(20.0))) == [11]


def test_a_reply_that_was_cancelled_is_whole_when_it_is_asked_again(filled: Client) -> None:
    client = filled

    async def ask() -> list[int]:
        channel = client.channel
        with suppress(DeadlineExceeded):
            await channel.call_async(call_of(1, 400, 11), soon(TIMEOUT_S))
        assert channel.zombies == 1
        end_s = time.monotonic() + 20.0
        while channel.zombies:
            assert time.monotonic() < end_s
            await asyncio.sleep(0.01)
        scribble(client)
        return values_of(await channel.call_async(call_of(1, 400, 11), soon(20.0)))

    assert asyncio.run(ask()) == [11]


def test_the_slot_is_free_again_once_the_request_is_acknowledged(filled: Client) -> None:
    client = filled
    arena = client.channel.arena
    values_of(client.channel.call(call_of(1, 400, 1), soon(20.0)))  # so slow it is
    settle(client, 2)
    lent = arena.lent_bytes()
    for number in range(3, 9, 2):
        with pytest.raises(DeadlineExceeded):
            client.channel.call(call_of(number, 400, number), soon(TIMEOUT_S))
        settle(client, number + 1)
    assert arena.lent_bytes() >= lent + 3 * REPLY_BYTES
    values_of(client.channel.call(call_of(9, 0, 9, ack_no=9), soon(20.0)))
    assert arena.lent_bytes() < lent + REPLY_BYTES


@pytest.mark.parametrize("how", ["before", "after"])
def test_an_answer_that_comes_as_its_caller_leaves_gives_its_slots_back(filled: Client, how: str) -> None:
    client = filled
    arena = client.channel.arena

    async def leave(number: int) -> None:
        task = asyncio.ensure_future(client.channel.call_async(call_of(number, 10, number), soon(20.0)))
        await asyncio.sleep(0.001)
        block(0.1)  # the answer is there, and the loop has not looked
        if how == "before":
            task.cancel()
        else:
            asyncio.get_running_loop().call_later(0.001, task.cancel)  # a loop looks at sockets first, then at timers
            block(0.005)
        with suppress(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await asyncio.sleep(0.01)

    async def all_of_them() -> int:
        for number in range(1, 5):
            await leave(number)
        for number in range(9, 100):  # each call looks for the ends of those before it
            values_of(await client.channel.call_async(call_of(number, 0, 9, ack_no=number), soon(20.0)))
            if arena.lent_bytes() < REPLY_BYTES:
                break
        return arena.lent_bytes()

    assert asyncio.run(all_of_them()) < REPLY_BYTES


def test_a_final_frame_that_an_interrupt_lost_is_asked_for(filled: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client = filled
    monkeypatch.setattr(pooled, "LOST_FRAME_S", 0.1)
    arena = client.channel.arena
    for number, ms in enumerate((400, 0), 1):
        with pytest.raises(DeadlineExceeded):
            client.channel.call(call_of(number, 400, number), soon(TIMEOUT_S))
        (zombie,) = client.channel._pool._zombies
        if ms:
            assert select.select([zombie.sock], [], [], 20.0)[0]
            assert zombie.sock.recv(1 << 16)  # as if a signal's handler had raised in the moment after
        settle(client, 10 + number)
    assert client.channel._pool.busy == 0
    settle(client, 20)
    client.channel.call(call_of(30, 0, 3, ack_no=30), soon(20.0))
    assert arena.lent_bytes() < 2 * REPLY_BYTES


def test_who_gives_up_does_not_cancel_the_request_of_who_asks_again(node: RunningNode, filled: Client) -> None:
    """A retry may overtake the CANCEL of the attempt before it, on another socket or wire."""
    with client_of(node, 8) as other, client_of(node) as second:
        slow = call_of(2, 600, 2, client_id=8)
        values_of(other.channel.call(replace(slow, id=RequestId(8, 1)), soon(20.0)))  # so slow it is
        found: dict[Client, list[int]] = {}

        def ask(client: Client, call: Call, timeout_s: float) -> None:
            with suppress(DeadlineExceeded):
                found[client] = values_of(client.channel.call(call, soon(timeout_s)))

        threads = []
        for client, call, timeout_s in (
            (other, slow, 5.0), (filled, call_of(1, 0, 5), 0.3), (second, call_of(1, 0, 5), 5.0),
        ):  # fmt: skip
            threads.append(threading.Thread(target=ask, args=(client, call, timeout_s)))
            threads[-1].start()
            time.sleep(0.1)
        for thread in threads:
            thread.join(10.0)
        assert (found[other], found[second]) == ([2], [5])
        settle(filled, 3)
