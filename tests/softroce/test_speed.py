"""The wire against bare pyverbs, both between the same two guests in one run: a ratio is all that emulation can tell.

The rpc wire's figures stand beside them, for the record; nothing is claimed from them about real networks.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.contract.world import BlockingCaller, Client, release
from tests.softroce.lab import here
from tests.softroce.worlds import EVENTS_ONLY, RdmaWorld

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.world import Bytes

pytestmark = [pytest.mark.guests(2), pytest.mark.long, pytest.mark.timeout(600)]
PINGS, WRITES, ROUNDS = 200, 48, 3
CASE_S = 120.0
IN_FLIGHT = 4
STREAM_SHARE_MIN, PING_FACTOR_MAX = 0.85, 3.0


@pytest.fixture(scope="module")
def world() -> Iterator[RdmaWorld]:
    made = RdmaWorld(EVENTS_ONLY)
    yield made
    made.close()


@pytest.fixture(scope="module")
def body() -> Bytes:
    return np.random.default_rng(7).integers(0, 256, 1 << 20, np.uint8)


def run_bare(case: str, count: int) -> list[float]:
    """Seconds, as the caller's end saw them."""
    server = here.Process(1, "tests.softroce.bare", "serve")
    assert server.line(CASE_S) == "ready"
    caller = here.Process(0, "tests.softroce.bare", "10.77.0.2", case, str(count))
    times: list[float] = json.loads(caller.line(CASE_S))
    assert caller.wait(CASE_S) == server.wait(CASE_S) == 0
    return times


@pytest.mark.long
@pytest.mark.xfail(reason="missed: 7.4 ms against 0.85 ms, 8.7 times; why is not known yet")
def test_a_small_call_costs_three_bare_round_trips_at_most(world: RdmaWorld, body: Bytes) -> None:
    caller = BlockingCaller()
    bare_s, ours_s = [], []
    with Client(world, caller) as client:
        for _ in range(ROUNDS):
            bare_s.append(statistics.median(run_bare("ping", PINGS)))
            took = []
            for _ in range(PINGS):
                began = time.perf_counter()
                client.call("echo", body[:64], timeout_s=20.0)
                took.append(time.perf_counter() - began)
            ours_s.append(statistics.median(took))
    caller.close()
    bare_p50_ms, ours_p50_ms = statistics.median(bare_s) * 1e3, statistics.median(ours_s) * 1e3
    sys.stderr.write(f"64 B p50: bare {bare_p50_ms:.2f} ms, ours {ours_p50_ms:.2f} ms\n")
    assert ours_p50_ms <= PING_FACTOR_MAX * bare_p50_ms, (ours_p50_ms, bare_p50_ms)


@pytest.mark.long
@pytest.mark.xfail(reason="missed: 38 MB/s against 79 MB/s, 49 %; why is not known yet")
def test_a_stream_of_large_calls_keeps_up_with_bare_writes(world: RdmaWorld, body: Bytes) -> None:
    """The node reads 64 bytes of each input and answers 64: what is compared is the way there."""
    caller = BlockingCaller()
    bare_s, ours_s = [], []
    with Client(world, caller) as client:
        for _ in range(ROUNDS):
            bare_s += run_bare("stream", WRITES)
            began = time.perf_counter()
            running = []
            for _ in range(WRITES):
                running.append(client.start("touch", body, timeout_s=60.0))
                if len(running) >= IN_FLIGHT:
                    release(running.pop(0).result(60.0))
            for future in running:
                release(future.result(60.0))
            ours_s.append(time.perf_counter() - began)
    caller.close()
    bare_mb_s, ours_mb_s = (WRITES * 1.048576 / statistics.median(times) for times in (bare_s, ours_s))
    sys.stderr.write(f"1 MiB stream: bare {bare_mb_s:.1f} MB/s, ours {ours_mb_s:.1f} MB/s\n")
    assert ours_mb_s >= STREAM_SHARE_MIN * bare_mb_s, (ours_mb_s, bare_mb_s)
