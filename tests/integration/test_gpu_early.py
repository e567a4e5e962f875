"""A caller hears of a lost executor before the kernel has taken its context down; no slot is used again until then.

The context of the fake card holds memory that the kernel takes back when the process ends, as a driver's does.
"""

from __future__ import annotations

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
TRIES = 3
KNOWN_AS = {"illegal_address": "met CUDA error 700", "kill": "was ended by signal 9"}
SOCKET_BYTES = 4 * SMALL_BODY_BYTES


@pytest.fixture
def node(fake_node: Callable[..., FakeNode], tmp_path: Path) -> FakeNode:
    card = tmp_path / "fake-cards" / "card-0"
    card.mkdir(parents=True)
    (card / "teardown").write_text(str(BURDEN_MIB))
    return fake_node("illegal_address", "kill", extra="quarantine_faults = 0\n")


@pytest.fixture
def channel(node: FakeNode) -> Iterator[LocalChannel]:
    channel = LocalChannel.open(node.instance().local, 77, soon(10.0))
    yield channel
    channel.close(soon(1.0))


def ask(channel: LocalChannel, number: int, reply_bytes: int = 256) -> None:
    body = small_body(tensors_of({"x": np.arange(64, dtype=np.float32)}))
    channel.call(Call(RequestId(77, number), "double", body, reply_bytes=reply_bytes), soon(20.0))


def test_whoever_asked_knows_before_the_process_is_gone(node: FakeNode, channel: LocalChannel) -> None:
    for number, (fault, why) in enumerate(KNOWN_AS.items(), 1):
        # A node that gets no processor for a tenth of a second sees the end first, and tells at once as well.
        tries = [100 * number + again for again in range(TRIES)]
        assert any(loses_early(node, channel, fault, why, each) for each in tries), node.node.log


def loses_early(node: FakeNode, channel: LocalChannel, fault: str, why: str, number: int) -> bool:
    """Has a request meet a fault. Whether its slots were held when its caller was told; they are free in the end."""
    ask(channel, number)
    lent = channel.arena.lent_bytes()
    node.break_next(fault)
    with pytest.raises(ExecutorLost, match=why):
        ask(channel, number + 10, reply_bytes=1 << 20)
    early = channel.zombies == 1
    assert not early or channel.arena.lent_bytes() > lent
    assert wait_until(lambda: _asked_again(channel, number + 10), 20.0, 0.05), node.node.log
    assert wait_until(lambda: _nothing_held(channel, number + 10), 10.0, 0.05)
    assert channel.arena.lent_bytes() <= lent + SOCKET_BYTES  # a second socket has its small slots
    return early


def _nothing_held(channel: LocalChannel, number: int) -> bool:
    """What is released is noticed when a socket is wanted."""
    ask(channel, number)
    return channel.zombies == 0


def _asked_again(channel: LocalChannel, number: int) -> bool:
    """The same id may run again at once, since the model is idempotent, and does when the next generation is up."""
    try:
        ask(channel, number)
    except ExecutorLost:
        return False
    return True
