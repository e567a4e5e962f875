"""Replies that come seconds after their caller gave up: they land in memory that nobody else was given meanwhile.

The node's packets are delayed, and its caller waits for a fraction of that. At once all room that the caller lends is
lent and filled; when the late replies are there, every byte of it is as it was. Then others ask for the same room.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import ArenaFull, DeadlineExceeded
from fabric.memory.lease import Lease
from tests.contract.world import BlockingCaller, Client, check_flipped, wait_until
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.guests(2, "native"), pytest.mark.long]
DELAY_MS, GIVEN_S = 2500, 0.5
LONG_ACK = 20
"""4.3 s for an acknowledgement: what is late is not sent again."""
GIVEN_UP, OTHERS, AT_ONCE = 4, 40, 10
LENT_BYTES = 64 << 10
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
                nobody_writes_to_what_is_lent(client)
                ask_for_the_same_room(client, pool)
            finally:
                here.run(1, "tc", "qdisc", "del", "dev", "eth0", "root")
            assert client.channel.alive
            client.flips(pool[:BODY_BYTES])
    finally:
        caller.close()
        world.close()


def nobody_writes_to_what_is_lent(client: Client) -> None:
    """Until the last of the late replies has come."""
    replies = client.channel._replies  # type: ignore[attr-defined]
    assert replies.current.out, "they are not late: nothing is tried here"
    lent: list[Lease] = []
    try:
        with suppress(ArenaFull):
            while True:
                lent.append(Lease.of(replies.current.arena, LENT_BYTES))
        for lease in lent:
            lease.view[:] = b"\xa5" * lease.nbytes
        assert len(lent) * LENT_BYTES > 2 * GIVEN_UP * BODY_BYTES
        assert wait_until(lambda: replies.current.out == 0, 60.0), "a slot stays in quarantine"
        assert all(lease.view == b"\xa5" * lease.nbytes for lease in lent), "a late reply was written to it"
    finally:
        for lease in lent:
            lease.release()


def ask_for_the_same_room(client: Client, pool: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
    for first in range(0, OTHERS, AT_ONCE):
        bodies = [pool[step : step + BODY_BYTES] for step in range(first, first + AT_ONCE)]
        running = [(body, client.start("flip", body, timeout_s=60.0)) for body in bodies]
        for body, future in running:
            check_flipped(future.result(120.0), body)
