"""Sixteen router processes that do not know of each other do not run to the same worker: nodes wait, nothing computes.

What is compared is how uneven the work is that is sent within a tenth of a second: the 99th percentile, over all such
windows, of the most that one worker got over the mean. The yardstick is what a fair die would have made of the same
requests at the same instants.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.integration.router_nodes import ROOT, Nodes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROUTERS, NODES, ROUNDS, ROUND_S = 16, 8, 5, 10.0
LOAD, RUN_S = 0.7, 0.03
WINDOW_S = 0.1
DICE = 20
"""Throws of the yardstick: one alone would be chance."""

Sent = tuple[float, str, float]
"""When, to whom, and how much work."""


def herd(sent: Sequence[Sent], names: Sequence[str]) -> float:
    """99th percentile over windows of the largest share of one worker over the mean share. Windows with fewer requests
    than workers tell nothing: one request alone is all of the work, wherever it goes."""
    windows: dict[int, list[tuple[str, float]]] = {}
    for at_s, name, work in sent:
        windows.setdefault(int(at_s / WINDOW_S), []).append((name, work))
    ratios = []
    for window in windows.values():
        if len(window) >= len(names):
            shares = dict.fromkeys(names, 0.0)
            for name, work in window:
                shares[name] += work
            ratios.append(max(shares.values()) / (sum(shares.values()) / len(names)))
    assert len(ratios) > 20, "enough windows to compare"
    return float(np.percentile(ratios, 99))


def hurry(processes: Sequence[int]) -> None:
    """Gives all threads a real-time priority: in a busy machine a load page is as old as its node waited for a core."""
    try:
        for process in processes:
            for thread in Path(f"/proc/{process}/task").iterdir():
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        pytest.skip("no real-time priority can be had here, and a busy machine would decide")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_sixteen_router_processes_make_no_herd(tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    names, ratios = [f"n{number}" for number in range(NODES)], []
    rate_hz = LOAD * NODES / RUN_S / ROUTERS
    with Nodes(tmp_path) as nodes, ExitStack() as undo:
        for name in names:
            nodes.start(name, "local")
        nodes.wait_ready(*names, timeout_s=120.0)
        routers = []
        for seed in range(1, ROUTERS + 1):
            words = [nodes.registry, str(seed), str(rate_hz), str(ROUND_S)]
            routers.append(
                undo.enter_context(
                    subprocess.Popen(
                        [sys.executable, "-m", "tests.integration.herd_router", *words],
                        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    )
                )
            )  # fmt: skip
            assert routers[-1].stdin is not None
            undo.callback(routers[-1].stdin.close)
        for router in routers:
            assert router.stdout is not None
            assert router.stdout.readline() == "ready\n"
        hurry([*(pid for name in names for pid in nodes._family(name)), *(router.pid for router in routers)])
        for turn in range(ROUNDS + 1):  # the first one is warm-up: nobody knows anybody
            begin_s = time.monotonic() + 0.5
            for router in routers:
                assert router.stdin is not None
                router.stdin.write(f"{begin_s}\n")
                router.stdin.flush()
            told = [json.loads(router.stdout.readline()) for router in routers if router.stdout is not None]
            sent: list[Sent] = [(at_s, name, work) for each in told for at_s, name, work in each]
            dice = Random(turn)
            fair = median(
                herd([(at_s, dice.choice(names), work) for at_s, _, work in sent], names) for _ in range(DICE)
            )
            if turn:
                ratios.append(herd(sent, names) / fair)
    told = f"median {median(ratios):.2f} of {', '.join(f'{ratio:.2f}' for ratio in ratios)}"
    record_property("unevenness over a fair die's", told)
    assert median(ratios) <= 1.0, told
