"""The rdma wire between two processes of one machine, beside the rpc wire in the same run: figures, not goals.

On a machine with an RDMA device of its own they are that device's; in a guest they are an emulated CPU's, and only
show that the measuring works. `OVERSPILL_HW_FIGURES` names a file that gets them.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.contract.world import BlockingCaller, Client, release
from tests.softroce.worlds import EVENTS_ONLY, SPINNING, RdmaWorld, RpcWorld, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.world import Bytes, World

pytestmark = [pytest.mark.guests(1), pytest.mark.long, pytest.mark.timeout(600)]

WORLDS: dict[str, Callable[[], World]] = {
    "events": lambda: RdmaWorld(EVENTS_ONLY),
    "spin": lambda: RdmaWorld(SPINNING),
    "rpc": RpcWorld,
}
FIGURES = os.environ.get("OVERSPILL_HW_FIGURES", "")
PINGS, STREAMED = (5000, 2000) if FIGURES else (50, 8)
IN_FLIGHT = 4
BODY_BYTES = 1 << 20
TIMEOUT_S = 60.0


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    """Leaks are counted when closed channels have come to their end."""
    yield
    settle()


def measured(client: Client, body: Bytes) -> dict[str, float]:
    """Microseconds of a small call, and MB/s of large ones to a node that reads 64 bytes of each."""
    took_us = []
    for _ in range(PINGS):
        began = time.perf_counter()
        client.call("echo", body[:64], timeout_s=TIMEOUT_S)
        took_us.append(1e6 * (time.perf_counter() - began))
    began = time.perf_counter()
    running = []
    for _ in range(STREAMED):
        running.append(client.start("touch", body, timeout_s=TIMEOUT_S))
        if len(running) >= IN_FLIGHT:
            release(running.pop(0).result(TIMEOUT_S))
    for future in running:
        release(future.result(TIMEOUT_S))
    mb_s = STREAMED * BODY_BYTES / 1e6 / (time.perf_counter() - began)
    centiles = statistics.quantiles(took_us, n=100)
    return {"p50_us": round(centiles[49], 1), "p99_us": round(centiles[98], 1), "mb_s": round(mb_s, 1)}


def test_card_speed() -> None:
    body = np.random.default_rng(7).integers(0, 256, BODY_BYTES, np.uint8)
    figures = {}
    for name, make in WORLDS.items():
        world, caller = make(), BlockingCaller()
        try:
            with Client(world, caller) as client:
                figures[name] = measured(client, body)
        finally:
            caller.close()
            world.close()
    assert all(value > 0 for each in figures.values() for value in each.values())
    if FIGURES:
        Path(FIGURES).write_text(json.dumps(figures))
