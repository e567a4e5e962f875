"""Ten thousand requests of 0 bytes to 32 MiB, and each byte of each answer is the right one."""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.memory.arena import Arena
from tests.contract.conftest import SEED
from tests.contract.test_calls import BORDERS
from tests.contract.world import Bytes, bytes_of, release

if TYPE_CHECKING:
    from tests.contract.world import Client

REQUESTS = 10_000
SIZE_MAX = 32 << 20
THREADS = 2
"""Enough to have requests beside one another; each holds an input and a reply of at most 32 MiB in a 256 MiB arena."""


def sizes_for(budget: int, requests: int, seed: int) -> list[int]:
    """All borders, and sizes drawn log-uniform up to 32 MiB as often as `budget` carries, else up to 64 KiB."""
    random = np.random.default_rng(seed)
    sizes = list(BORDERS)
    left = budget - sum(sizes)
    mean = SIZE_MAX / math.log(SIZE_MAX)  # of a log-uniform draw
    share = left / (requests - len(sizes)) / mean
    while len(sizes) < requests:
        bound = SIZE_MAX if random.random() < share else 64 << 10
        size = int(math.exp(random.uniform(0, math.log(bound)))) - int(random.integers(0, 2))
        if size <= left or size <= 64 << 10:
            sizes.append(size)
            left -= size
    random.shuffle(sizes)
    return sizes


def test_the_budget_is_kept() -> None:
    for budget in (1 << 30, 4 << 30):
        sizes = sizes_for(budget, REQUESTS, SEED)
        assert len(sizes) == REQUESTS
        assert 0.8 * budget < sum(sizes) <= 1.1 * budget
        assert set(BORDERS) <= set(sizes)
        assert min(sizes) == 0
        assert sum(size > 16 << 20 for size in sizes) > 10


def test_each_byte(client: Client, pool: Bytes) -> None:
    run_sizes(client, pool, sizes_for(client.world.bytes_budget, REQUESTS, SEED), SEED)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_each_byte_long(client: Client, pool: Bytes, seed: int) -> None:
    run_sizes(client, pool, sizes_for(client.world.bytes_budget * 2, REQUESTS, seed), seed)


def run_sizes(client: Client, pool: Bytes, sizes: list[int], seed: int, timeout_s: float = 30.0) -> None:
    """From several threads, out of bytes, leases of the caller's arena, and foreign ones. `flip` writes every byte
    anew, so an answer that only repeats what lies in memory is found out."""
    flipped = np.invert(pool)
    faults: list[str] = []

    def work(part: int) -> None:
        random = np.random.default_rng((seed, part))
        foreign = Arena.create(max(sizes))
        try:
            for number, size in enumerate(sizes[part::THREADS]):
                start = int(random.integers(0, pool.nbytes - size))
                place = ("bytes", "lease", "foreign")[number % 3]
                call = client.request("flip", pool[start : start + size], place, foreign)
                answer = client.caller.call(client.channel, call, client.world.deadline(timeout_s))
                got = bytes_of(answer)
                if not np.array_equal(got, flipped[start : start + size]):
                    faults.append(f"request {call.id} of {size} bytes from {start}, {place}")
                del got
                release(answer)
                if not isinstance(call.body.memory, bytes):
                    call.body.memory.release()
        except BaseException as error:  # noqa: BLE001 - carried to the test's own thread
            faults.append(repr(error))

    threads = [threading.Thread(target=work, args=(part,)) for part in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[:5]
