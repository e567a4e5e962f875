"""Volume, where user code runs at this machine's own speed: ten thousand requests, each byte of each answer checked.

Sizes are drawn log-uniform from 64 B to 64 MiB, as often as the budget of bytes carries, else up to 1 MiB. Guests of a
user-mode kernel carry it; under emulation the short forms of `tests/softroce/test_contract.py` stand for it.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.contract.test_bytes import run_sizes
from tests.contract.world import CALLERS, Client
from tests.softroce.worlds import EVENTS_ONLY, SPINNING, RdmaWorld, settle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.world import Bytes

pytestmark = [pytest.mark.long, pytest.mark.timeout(1700)]
REQUESTS = 10_000
SIZE_MIN, SIZE_MAX, SMALL_MAX = 64, 64 << 20, 1 << 20
"""A reply of the largest size finds room at the node only where nothing else of its caller lies in one half of its
quarter of a GiB: it waits for that, beside others."""
LARGEST = 4
BUDGET_BYTES = 1 << 30
"""Each way. All draws up to 64 MiB would be 48 GB, and an hour on a quiet machine; with 6 GiB one of these tests took
longer than a long form may on a busy one."""
SEED = 20_261
CLIENTS, ROUNDS = 8, 64


@pytest.fixture(autouse=True)
def settled(no_leaks: None) -> Iterator[None]:
    yield
    settle()


@pytest.fixture(scope="module")
def pool() -> Bytes:
    return np.random.default_rng(SEED).integers(0, 256, SIZE_MAX + (1 << 20), np.uint8)


def sizes_for(budget: int, requests: int, seed: int) -> list[int]:
    """Both ends, and draws between them."""
    random = np.random.default_rng(seed)
    sizes = [SIZE_MIN, *[SIZE_MAX] * LARGEST]
    mean, mean_small = (top / math.log(top / SIZE_MIN) for top in (SIZE_MAX, SMALL_MAX))
    share = (budget / requests - mean_small) / (mean - mean_small)
    while len(sizes) < requests:
        top = SIZE_MAX if random.random() < share else SMALL_MAX
        sizes.append(int(math.exp(random.uniform(math.log(SIZE_MIN), math.log(top)))))
    random.shuffle(sizes)
    return sizes


def volume(spin_us: int, caller_name: str, pool: Bytes, budget: int) -> None:
    world = RdmaWorld(spin_us, arena_bytes=1 << 30)
    caller = CALLERS[caller_name]()
    sizes = sizes_for(budget, REQUESTS, SEED)
    began_s = time.monotonic()
    with Client(world, caller) as client:
        run_sizes(client, pool, sizes, SEED, timeout_s=120.0)
    took_s = time.monotonic() - began_s
    sys.stdout.write(f"{REQUESTS} requests, {2 * sum(sizes) / 1e9:.1f} GB both ways in {took_s:.0f} s\n")  # for -rP
    caller.close()
    world.close()


@pytest.mark.guests(2, "native")
@pytest.mark.parametrize("caller_name", list(CALLERS))
def test_volume(pool: Bytes, caller_name: str) -> None:
    volume(EVENTS_ONLY, caller_name, pool, BUDGET_BYTES)


@pytest.mark.guests(1, "native")
@pytest.mark.parametrize("spin_us", [EVENTS_ONLY, SPINNING])
def test_volume_in_one_guest(pool: Bytes, spin_us: int) -> None:
    volume(spin_us, "blocking", pool, BUDGET_BYTES // 2)


@pytest.mark.guests(2, "native")
def test_many_clients_get_their_own_bytes(pool: Bytes) -> None:
    """Each with a connection of its own, all at once: nobody gets another one's bytes, and none are mixed."""
    world = RdmaWorld(EVENTS_ONLY)
    caller = CALLERS["blocking"]()
    faults: list[str] = []

    def work(number: int) -> None:
        random = np.random.default_rng((SEED, number))
        try:
            with Client(world, caller, client_id=100 + number) as client:
                for _ in range(ROUNDS):
                    start, size = int(random.integers(0, 1 << 20)), int(random.integers(64, 1 << 20))
                    client.flips(pool[start : start + size], timeout_s=60.0)
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            faults.append(repr(error))

    threads = [threading.Thread(target=work, args=(number,), name="client") for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    caller.close()
    world.close()
    assert not faults, faults[:5]
