"""A caller hears of a lost executor before the kernel has taken its context down; no slot is used again until then.

The context of the fake card holds memory that the kernel takes back when the process ends, as a driver's does.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import ExecutorLost
from fabric.local.channel import LocalChannel
from fabric.message import SMALL_BODY_BYTES, RequestId, small_body, tensors_of
from fabric.transport import Call
from tests.integration.bad_node import wait_until
from tests.integration.nodes import soon

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.integration.fake_cards import FakeNode

pytestmark = pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies")

BURDEN_MIB = 256
SOCKET_BYTES = 4 * SMALL_BODY_BYTES


class End(threading.Thread):
    """When a process is gone, by the monotonic clock."""

    def __init__(self, pid: int) -> None:
        super().__init__()
        self._fd = os.pidfd_open(pid)
        self.at_s = 0.0
        self.start()

    def run(self) -> None:
        select.select([self._fd], [], [], 30.0)
        self.at_s = time.monotonic()
        os.close(self._fd)


@pytest.fixture
def node(fake_node: Callable[..., FakeNode], tmp_path: Path) -> FakeNode:
    card = tmp_path / "fake-cards" / "card-0"
    card.mkdir(parents=True)
    (card / "teardown").write_text(str(BURDEN_MIB))
    return fake_node("illegal_address", "kill")


@pytest.fixture
def channel(node: FakeNode) -> Iterator[LocalChannel]:
    channel = LocalChannel.open(node.instance().local, 77, soon(10.0))
    yield channel
    channel.close(soon(1.0))


def ask(channel: LocalChannel, number: int, reply_bytes: int = 256) -> None:
    body = small_body(tensors_of({"x": np.arange(64, dtype=np.float32)}))
    channel.call(Call(RequestId(77, number), "double", body, reply_bytes=reply_bytes), soon(20.0))


@pytest.mark.parametrize("fault", ["illegal_address", "kill"])
def test_whoever_asked_knows_before_the_process_is_gone(node: FakeNode, channel: LocalChannel, fault: str) -> None:
    ask(channel, 1)
    lent = channel.arena.lent_bytes()
    (pid,) = node.node.executors()
    end = End(pid)
    node.break_next(fault)
    with pytest.raises(ExecutorLost) as raised:
        ask(channel, 2, reply_bytes=1 << 20)
    told_s = time.monotonic()
    why = "met CUDA error 700" if fault == "illegal_address" else "was ended by signal 9"
    assert why in str(raised.value)
    # What the request had is held until then, and free afterwards.
    assert channel.zombies == 1
    assert channel.arena.lent_bytes() > lent
    end.join()
    assert told_s < end.at_s, "it is told before the end"
    assert wait_until(lambda: _asked_again(channel), 20.0, 0.05), node.node.log
    assert wait_until(lambda: _nothing_held(channel), 10.0, 0.05)
    assert channel.arena.lent_bytes() <= lent + SOCKET_BYTES  # a second socket has its small slots


def _nothing_held(channel: LocalChannel) -> bool:
    """What is released is noticed when a socket is wanted."""
    ask(channel, 2)
    return channel.zombies == 0


def _asked_again(channel: LocalChannel) -> bool:
    """The same id may run again at once, since the model is idempotent, and does when the next generation is up."""
    try:
        ask(channel, 2)
    except ExecutorLost:
        return False
    return True


def test_a_kill_from_outside_is_noticed_as_soon(node: FakeNode, channel: LocalChannel) -> None:
    ask(channel, 1)
    (pid,) = node.node.executors()
    end = End(pid)
    os.kill(pid, signal.SIGKILL)
    end.join()
    assert wait_until(lambda: "was ended by signal 9" in node.node.log, 10.0, 0.01)
    ask(channel, 2)
