"""What queue pairs must never do: wait for ever, be told "receiver not ready", or overrun the queue that they share."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.contract.world import wait_until
from tests.softroce.echo import CONFIG, EchoWorld, after

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.rdma.channel import RdmaChannel

pytestmark = pytest.mark.guests(1)
COUNTERS = Path("/sys/class/infiniband")
THREADS = 8
ARENA_BYTES = 256 << 10
"""Of each of three hundred connections: both ends of all lie in one guest, which may pin a quarter of 2.5 GiB for each
end."""


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    gc.collect()


def _not_ready() -> int:
    """How often any device of this machine told, or was told, that a receiver was not ready."""
    names = ("rcvd_rnr_err", "send_rnr_err")
    return sum(int(path.read_text()) for name in names for path in COUNTERS.glob(f"*/ports/*/hw_counters/{name}"))


def _ask_often(world: EchoWorld, channel: RdmaChannel, count: int) -> None:
    def ask(step: int) -> None:
        for number in range(count // THREADS):
            world.echoes(channel, 100 if (number + step) % 8 else 20_000)

    threads = [threading.Thread(target=ask, args=(step,), name="asker") for step in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)


def test_no_pair_waits_for_ever_and_none_finds_its_receiver_unready() -> None:
    """On soft-RoCE seven retries mean for ever; and credits leave no room for "receiver not ready"."""
    began = _not_ready()
    with EchoWorld() as world:
        channel = world.open()
        pairs = channel._connection._pairs._pairs
        assert all(0 < retries <= 6 and 0 < unready <= 6 for retries, unready in (pair.retries() for pair in pairs))
        _ask_often(world, channel, 200)
        channel.close(after(5.0))
    assert _not_ready() == began


@pytest.mark.parametrize(
    ("links", "each"), [(5, 2), pytest.param(300, 32, marks=[pytest.mark.long, pytest.mark.timeout(900)])]
)
def test_more_connections_than_one_queue_holds(monkeypatch: pytest.MonkeyPatch, links: int, each: int) -> None:
    """Each has its place on a queue that cannot overrun, all of them answer at the same time, and all can be closed."""
    monkeypatch.setattr("fabric.rdma.engine.LINKS_PER_QUEUE", each)
    with EchoWorld(config=replace(CONFIG, arena_bytes=ARENA_BYTES)) as world:
        channels = [world.open() for _ in range(links)]
        assert len(world.caller._queues) == -(-links // each)
        threads = [threading.Thread(target=world.echoes, args=(channel, 3000), name="asker") for channel in channels]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert all(channel.alive for channel in channels)
        for channel in channels:
            channel.close(after(5.0))
        assert wait_until(lambda: not world.caller.links and not world.node.links)
