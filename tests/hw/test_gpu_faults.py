"""Faults of executors on real cards, under load, through node and router: nothing wrong, nothing lost, and how soon.

Twenty of each kind with each standby, shared out over the cards that are there; `OVERSPILL_HW_TRIALS=5` makes it
shorter, `OVERSPILL_HW_STANDBYS=off` and `OVERSPILL_HW_FAULTS=trap` take some. The work is done in
`tests/hw/fault_trials.py`, one process a card at a time.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fabric.errors import MissingDependency
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(3600),
    pytest.mark.leaks("the driver's library keeps its descriptors for the life of a process"),
]

ROOT = Path(__file__).parents[2]
TRIALS = int(os.environ.get("OVERSPILL_HW_TRIALS", "20"))
FAULTS = os.environ.get("OVERSPILL_HW_FAULTS", "illegal_address,trap,assert,hang,kill").split(",")
STANDBYS = os.environ.get("OVERSPILL_HW_STANDBYS", "off,context,full").split(",")
COLD_MS, FULL_MS = 1500.0, 50.0
"""Goals on an H200: from the error at the caller to the first right answer."""
ONE_TIMEOUT_S = 600.0


def test_faults_under_load(report: Report) -> None:
    try:
        cards = Nvml().cards()
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))
    report.device = cards[0].model
    todo: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for fault in FAULTS:
        for standby in STANDBYS:
            todo.put((standby, fault))
    done: dict[str, Any] = {}
    failures: list[str] = []

    def work(index: int) -> None:
        while not failures:
            try:
                standby, fault = todo.get_nowait()
            except queue.Empty:
                return
            words = ["--device", f"cuda:{index}", "--standby", standby, "--fault", fault, "--trials", str(TRIALS)]
            ended = subprocess.run(
                [sys.executable, "-m", "tests.hw.fault_trials", *words], cwd=ROOT, capture_output=True, text=True,
                timeout=ONE_TIMEOUT_S, check=False,
            )  # fmt: skip
            if ended.returncode:
                failures.append(f"{standby} {fault}: {ended.stderr[-4000:]}")
                return
            sys.stdout.write(ended.stdout)  # seen with -s: the report is written at the end only
            done[f"{fault}_{standby}"] = json.loads(ended.stdout.splitlines()[-1])

    threads = [threading.Thread(target=work, args=(card.index,)) for card in cards]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for standby in STANDBYS:
        found = {name: one for name, one in done.items() if one["standby"] == standby}
        report.add(f"faults_{standby}", cards=len(cards), trials_of_each=TRIALS, **found)
    assert not failures, failures[0]
    assert all(one["wrong"] == 0 and one["lost"] == [] for one in done.values())
    if "H200" in report.device:
        late = {
            name: one["recovered_ms"]
            for name, one in done.items()
            if one["recovered_ms"]["median"] > (FULL_MS if one["standby"] == "full" else COLD_MS)
        }
        assert not late, late
