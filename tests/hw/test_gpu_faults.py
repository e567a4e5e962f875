"""Faults of executors on a real card, under load, through node and router: nothing wrong, nothing lost, and how soon.

Twenty of each kind with each standby, on the first card: some eight minutes on an H200. `OVERSPILL_HW_TRIALS=5`
makes it shorter, `OVERSPILL_HW_STANDBYS=off` and `OVERSPILL_HW_FAULTS=trap` take some, and no further fault is made
after `OVERSPILL_HW_FAULTS_S` seconds. All standbys have their half before one has its second. Each fault is a line in
`fault-trials.jsonl`, in the reports' folder, as soon as it is over, and the nodes' logs are beside it: what a run has
seen that is cut short is not lost.

One node at a time, since the kernel takes contexts down one after another, and before tests that use CUDA in this
process: where a process that is not the node's holds memory of the card, an Xid does not say whose run it was about,
and a trap is seen when the driver reports it (0.36 s), not after 8 ms. Read `tests/hw/fault_trials.py` next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import pytest

from fabric.errors import MissingDependency
from tests.hw.conftest import FOLDER
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(3600),
    pytest.mark.leaks("the driver's library keeps its descriptors for the life of a process"),
]

ROOT: Final = Path(__file__).parents[2]
TRIALS: Final = int(os.environ.get("OVERSPILL_HW_TRIALS", "20"))
FAULTS: Final = os.environ.get("OVERSPILL_HW_FAULTS", "illegal_address,trap,assert,hang,kill")
STANDBYS: Final = os.environ.get("OVERSPILL_HW_STANDBYS", "off,full,context").split(",")
FAULTS_S: Final = float(os.environ.get("OVERSPILL_HW_FAULTS_S", "3000"))
GOALS_MS: Final = {"off": 1500.0, "full": 50.0}
"""Goals on an H200: from the error at the caller to the first right answer."""
TOLD_MS: Final = {"kill": 10.0}
TOLD_MAX_MS: Final = 200.0
NODES: Final = 2
"""Nodes of each standby, one after another: each has its part of the trials."""


class Trials:  # mutable: filled fault by fault
    """What became of each kind."""

    def __init__(self, report: Report, device: str) -> None:
        self.lines: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self._report, self._device = report, device
        self._until_s = time.monotonic() + FAULTS_S

    def all(self) -> None:
        """All nodes, one after another. One that fails keeps none of the others from trying."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        for part in range(NODES):
            for standby in STANDBYS:
                self._node(standby, TRIALS // NODES + (part < TRIALS % NODES))

    def _node(self, standby: str, trials: int) -> None:
        left_s = self._until_s - time.monotonic()
        if left_s <= 0 or not trials:
            return
        words = ["--device", self._device, "--standby", standby, "--faults", FAULTS, "--trials", str(trials)]
        words += ["--seconds", f"{left_s:.0f}", "--log", str(FOLDER / "fault-nodes.log")]
        command = [sys.executable, "-m", "tests.hw.fault_trials", *words]
        with (
            (FOLDER / "fault-errors.log").open("a") as errors,
            (FOLDER / "fault-trials.jsonl").open("a") as kept,
            subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
        ):
            assert process.stdout is not None
            for line in process.stdout:
                kept.write(line)
                kept.flush()
                sys.stdout.write(line)  # seen with -s
                sys.stdout.flush()
                self.lines.append(json.loads(line))
        if process.returncode:
            self.failures.append(f"{standby}: {Path(errors.name).read_text()[-4000:]}")
        of_it = [line for line in self.lines if line["standby"] == standby]
        self._report.add(f"faults_{standby}", **summary(standby, of_it))
        self._report.write()


def summary(standby: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What the trials with one kind of standby have shown: sums, and for each fault all that was measured."""
    kinds = {}
    for fault in dict.fromkeys(line["fault"] for line in lines if "fault" in line):
        of_it = [line for line in lines if line.get("fault") == fault]
        names = dict.fromkeys(name for line in of_it for name in line if name.endswith("_ms"))
        times = {name: [line[name] for line in of_it if name in line] for name in names}
        kinds[f"{fault}_{standby}"] = {"trials": len(of_it), "fault": fault, "standby": standby} | {
            name: {"median": round(median(all_), 2), "max": max(all_), "all": all_} for name, all_ in times.items()
        }
    sums = {name: sum(line[name] for line in lines) for name in ("answers", "retried", "wrong")}
    lost = [failure for line in lines for failure in line["lost"]]
    standby_bytes = max((line["standby_bytes"] for line in lines if "standby_bytes" in line), default=0)
    return kinds | sums | {"lost": lost, "standby_bytes": standby_bytes}


def test_faults_under_load(report: Report) -> None:
    try:
        nvml = Nvml()
        card = nvml.cards()[0]
        beside = len(nvml.holders(card.uuid))
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))
    report.device = card.model
    for standby in STANDBYS:
        report.add(f"faults_{standby}", cards=1, others_on_card=beside)
    trials = Trials(report, f"cuda:{card.index}")
    trials.all()
    assert not trials.failures, trials.failures[0]
    assert trials.lines, "there was no time for any"
    assert all((line["wrong"], line["lost"]) == (0, []) for line in trials.lines)
    if "H200" in report.device:
        assert not (late := list(missed(trials.lines))), late


def missed(lines: list[dict[str, Any]]) -> list[tuple[str, str, str, float]]:
    """The kinds whose median misses its goal: with what standby, what of it, and the median."""
    found = []
    for standby in STANDBYS:
        for name, kind in summary(standby, [line for line in lines if line["standby"] == standby]).items():
            if not isinstance(kind, dict):
                continue
            goals = {"recovered_ms": GOALS_MS.get(standby), "told_ms": TOLD_MS.get(kind["fault"], TOLD_MAX_MS)}
            found += [
                (standby, name, part, kind[part]["median"])
                for part, goal in goals.items()
                if goal is not None and kind[part]["median"] > goal
            ]
    return found
