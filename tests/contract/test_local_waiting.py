"""A blocking local call looks for a quick answer before it sleeps, but never looks for long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.contract.local_world import LocalWorld
from tests.contract.world import BlockingCaller, Client

if TYPE_CHECKING:
    from collections.abc import Iterator

QUICK_CALLS = 50
SLOW_MS = 300
LOOKED_MAX_S = 0.1
"""Processor time of one slow call that followed a quick one: a sleeper's is under a millisecond, and whoever looked all
the time would have used all of SLOW_MS."""


@pytest.fixture
def client() -> Iterator[Client]:
    world = LocalWorld()
    caller = BlockingCaller()
    with Client(world, caller) as made:
        yield made
    caller.close()
    world.close()


def test_a_slow_answer_after_quick_ones_is_slept_for(client: Client) -> None:
    data = np.arange(64, dtype=np.uint8)
    for _ in range(QUICK_CALLS):
        client.flips(data)
    began_s, used_s = time.monotonic(), time.process_time()
    client.call(f"later/{SLOW_MS}/flip", data)
    assert time.monotonic() - began_s >= SLOW_MS / 1000.0
    assert time.process_time() - used_s < LOOKED_MAX_S
