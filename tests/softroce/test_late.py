"""Replies that come seconds after their caller gave up: they land in memory that nobody else was given meanwhile.

The node's packets are delayed, its caller waits for a fraction of that, and others ask for the same room at once. Each
byte of each of their answers is checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import DeadlineExceeded
from tests.contract.world import BlockingCaller, Client, check_flipped, wait_until
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.guests(2, "native"), pytest.mark.long]
DELAY_MS, GIVEN_S = 2500, 0.5
LONG_ACK = 20
"""4.3 s for an acknowledgement: what is late is not sent again."""
GIVEN_UP, OTHERS, AT_ONCE = 6, 100, 10
BODY_BYTES = 40_000
"""Soft-RoCE has 512 KiB out at most, which with that delay is 200 KiB a second."""


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    settle()


def test_late_replies_land_in_nobody_elses_memory() -> None:
    pool = np.random.default_rng(11).integers(0, 256, BODY_BYTES + 10_000, np.uint8)
    world, caller = RdmaWorld(EVENTS_ONLY, LONG_ACK), BlockingCaller()
    try:
        with Client(world, caller) as client:
            client.flips(pool[:BODY_BYTES])
            here.run(1, "tc", "qdisc", "replace", "dev", "eth0", "root", "netem", "delay", f"{DELAY_MS}ms",
                     "limit", "100000")  # fmt: skip
            try:
                late = [client.start("flip", pool[:BODY_BYTES], timeout_s=GIVEN_S) for _ in range(GIVEN_UP)]
                for future in late:
                    assert isinstance(future.exception(60.0), DeadlineExceeded)
                ask_for_the_same_room(client, pool)
            finally:
                here.run(1, "tc", "qdisc", "del", "dev", "eth0", "root")
            assert client.channel.alive
            replies = client.channel._replies  # type: ignore[attr-defined]
            assert wait_until(lambda: replies.current.out == 0), "a slot stays in quarantine"
            client.flips(pool[:BODY_BYTES])
    finally:
        caller.close()
        world.close()


def ask_for_the_same_room(client: Client, pool: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
    for first in range(0, OTHERS, AT_ONCE):
        bodies = [pool[step : step + BODY_BYTES] for step in range(first, first + AT_ONCE)]
        running = [(body, client.start("flip", body, timeout_s=60.0)) for body in bodies]
        for body, future in running:
            check_flipped(future.result(120.0), body)
