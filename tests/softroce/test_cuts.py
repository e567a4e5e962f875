"""The process whose cable is pulled does not stand still: no call of the device that waits is made where others wait.

Soft-RoCE's destroying call waits for the last packet of a pair, which may wait for its neighbour's address for three
seconds, and pyverbs holds the interpreter's lock meanwhile. It was so with about one cut in three while bodies were on
their way.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import OverspillError
from tests.contract.world import BlockingCaller, Client, wait_until
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, FAULT_ACK, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.world import Bytes

pytestmark = [pytest.mark.guests(2), pytest.mark.long, pytest.mark.timeout(600)]
CUTS, CALLERS_AT_ONCE = 8, 3
BODY_BYTES = 200_000
BEAT_S = 0.01
STILL_S_MAX = 2.0
"""What was seen is 2.6 s, whatever else the machine does; a busy one lets a guest wait for some tenths."""
AGAIN_S = 60.0


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    settle()


class Heart:  # mutable: beats
    """A thread that notes how long it did not come to run."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heart")
        self._thread.start()

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.is_set():
            time.sleep(BEAT_S)
            now = time.monotonic()
            self.longest_s, last = max(self.longest_s, now - last), now

    def end(self) -> None:
        self._over.set()
        self._thread.join()


def asks(client: Client, body: Bytes) -> None:
    try:
        while True:
            client.flips(body, timeout_s=60.0)
    except OverspillError:
        return


def one_cut(world: RdmaWorld, body: Bytes, after_s: float) -> float:
    """The longest that this process stood still, from the cut until all of the connection is gone."""
    caller = BlockingCaller()
    with Client(world, caller) as client:
        client.flips(body)
        threads = [threading.Thread(target=asks, args=(client, body)) for _ in range(CALLERS_AT_ONCE)]
        for thread in threads:
            thread.start()
        time.sleep(after_s)
        heart = Heart()
        try:
            here.cable(0, up=False)
            for thread in threads:
                thread.join(60)
            assert wait_until(lambda: not world.engine.links)
        finally:
            heart.end()
            here.cable(0, up=True)
    caller.close()
    return heart.longest_s


def opens(world: RdmaWorld) -> bool:
    try:
        world.open_channel().close(world.deadline(5.0))
    except OverspillError:
        return False
    return True


def test_the_process_does_not_stand_still_when_its_cable_is_pulled() -> None:
    world, moments = RdmaWorld(EVENTS_ONLY, FAULT_ACK), random.Random(3)
    body = np.random.default_rng(7).integers(0, 256, BODY_BYTES, np.uint8)
    longest_s = []
    for _ in range(CUTS):
        assert wait_until(lambda: opens(world), AGAIN_S)
        longest_s.append(one_cut(world, body, moments.uniform(0.3, 1.3)))
    world.close()
    sys.stdout.write(f"{CUTS} cuts, stood still for {', '.join(f'{each:.2f}' for each in longest_s)} s\n")  # for -rP
    assert max(longest_s) < STILL_S_MAX, longest_s
