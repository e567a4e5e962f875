"""Memory that a peer may write to: no write lands after the fence, and a page that is written is never read torn.

The peer is made to answer while its caller gives up and ends the connection; once the caller's memory is said to be
free, every byte of it is set and watched.
"""

from __future__ import annotations

import gc
import mmap
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import OverspillError
from fabric.load_page import PAGE_BYTES, LoadPage, ModelLoad
from fabric.rdma.lifecycle import LinkState
from tests.softroce.echo import EchoWorld, after, make_body

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.rdma.channel import RdmaChannel

pytestmark = pytest.mark.guests(1)
BODY_BYTES = 1 << 20
WATCH_S = 0.25
"""Longer than the node's pause and its pieces take: what was under way when the caller left lands within it."""


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()


def _wait_gone(channel: RdmaChannel, timeout_s: float = 10.0) -> None:
    end_s = time.monotonic() + timeout_s
    while channel._connection._state is not LinkState.GONE:
        assert time.monotonic() < end_s, "the connection was not fenced"
        time.sleep(0.002)


def _ask_and_leave(world: EchoWorld, channel: RdmaChannel, timeout_s: float) -> None:
    try:
        channel.call(world.request(make_body(BODY_BYTES), BODY_BYTES), after(timeout_s))
    except OverspillError:
        return


def _fenced(channel: RdmaChannel) -> None:
    """By the end of its pairs."""
    channel.abort("cut in the middle")
    _wait_gone(channel)


def _key_ended(channel: RdmaChannel) -> None:
    """By the end of the region's key alone: the pairs live, and the node goes on writing until its NIC is refused."""
    connection = channel._connection
    with connection.lock:
        channel._replies.current.registered.close()


@pytest.mark.parametrize("rounds", [4, pytest.param(200, marks=pytest.mark.long)])
@pytest.mark.parametrize("fence", [_fenced, pytest.param(_key_ended, marks=pytest.mark.long)])
def test_no_write_lands_after_the_fence(rounds: int, fence: Callable[[RdmaChannel], None]) -> None:
    with EchoWorld() as world:
        world.pause_s = 0.03
        neighbour = world.open()
        for number in range(rounds):
            channel = world.open()
            world.echoes(channel, BODY_BYTES)
            asked = [
                threading.Thread(target=_ask_and_leave, args=(world, channel, 0.2 + 0.05 * (number % 3)))
                for _ in range(3)
            ]
            for thread in asked:
                thread.start()
            time.sleep(0.05 + 0.02 * (number % 5))
            memory = channel._replies.current.arena.map
            fence(channel)
            quiet = b"\xa5" * len(memory)
            memory[:] = quiet
            time.sleep(WATCH_S)
            assert memory[:] == quiet, f"a write landed after the fence, in round {number}"
            channel.abort("over")
            for thread in asked:
                thread.join(30)
            _wait_gone(channel)
            del memory
            world.echoes(
                neighbour, 100
            )  # nobody pings for it: a caller that is silent for ten minutes is taken for dead
        world.echoes(neighbour, BODY_BYTES)
        neighbour.close(after(5.0))


def test_a_load_page_is_read_whole_under_a_writer_that_never_pauses() -> None:
    memory = mmap.mmap(-1, PAGE_BYTES)
    page = LoadPage(memoryview(memory), 9)
    models = tuple(ModelLoad(key, key, key) for key in range(60))
    page.publish(0, 1, models)
    page.accept(7, 0, 0)
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            number += 1
            page.publish(number, 1, tuple(model._replace(queued=number & 0xFFFF) for model in models))
            page.accept(7, number, 1)

    with EchoWorld(memory) as world:
        channel = world.open()
        writer = threading.Thread(target=write, name="writer")
        writer.start()
        try:
            last = 0
            for _ in range(100):
                load = channel.read_page(after(20.0)).load
                # Its own line was read first: the page knows at least of what the line says.
                assert load.outstanding_us >= load.accepted
                assert load.sequence >= last
                last = load.sequence
        finally:
            over.set()
            writer.join(10)
        channel.close(after(5.0))
