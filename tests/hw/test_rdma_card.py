"""Where a machine has an RDMA device: the contract suite of all wires over it, and the wire's figures beside rpc's.

It runs in this machine itself, as tests for one guest do where there is a device (`tests/softroce/lab/own.py`). Without
one it says so; a machine with GPUs keeps that in its report, too.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from fabric.errors import MissingDependency
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(1800),
    pytest.mark.leaks("the driver's library keeps its descriptors for the life of a process"),
]

ROOT = Path(__file__).parents[2]
DEVICES = Path("/sys/class/infiniband")
SUITE = ("tests/softroce/test_contract.py", "tests/softroce/test_card_speed.py")
ON_ONE_MACHINE = "events- or spin- or card_speed"
SUITE_TIMEOUT_S = 1500.0


def device_name(devices: list[str]) -> str:
    """The report's: that of the cards, as the tests on several name it, or of the device; empty without either."""
    try:
        cards = Nvml().cards()
    except (OverseerError, MissingDependency):
        return f"rdma {devices[0]}" if devices else ""
    return cards[0].model if len(cards) == 1 else f"{cards[0].model} x{len(cards)}"


def test_the_contract_suite_on_a_card(tmp_path: Path, report: Report) -> None:
    devices = sorted(path.name for path in DEVICES.glob("*"))
    named = device_name(devices)
    if named:
        report.device = named
        report.add("rdma", devices=devices)
    if not devices:
        pytest.skip(f"there is no RDMA device here: {DEVICES} is empty")
    if importlib.util.find_spec("pyverbs") is None:
        pytest.skip(f"{', '.join(devices)} is here, and pyverbs is not: install python3-pyverbs of the distribution")
    figures = tmp_path / "figures.json"
    words = [sys.executable, "-m", "pytest", "-q", "-m", "not hw", "-k", ON_ONE_MACHINE, *SUITE]
    told = {"OVERSPILL_LAB_REQUIRED": "1", "OVERSPILL_HW_FIGURES": str(figures)}
    ended = subprocess.run(
        words, cwd=ROOT, env=os.environ | told, capture_output=True, text=True, timeout=SUITE_TIMEOUT_S, check=False
    )
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|error)", ended.stdout)}
    report.add("rdma", suite=counts, **json.loads(figures.read_text() if figures.exists() else "{}"))
    assert ended.returncode == 0, ended.stdout[-8000:]
