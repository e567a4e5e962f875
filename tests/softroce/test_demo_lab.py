"""`overspill demo --lab`: a round over rdma with the link cut and a guest killed, and one that Ctrl-C ends.

These run on the host, and boot guests of their own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.softroce.lab import here, lab, own

WHOLE_S = 1500.0
COMMAND = [sys.executable, "-m", "overspill", "demo", "--lab"]
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(WHOLE_S + 100),
    pytest.mark.skipif(here.inside(), reason="it boots guests, and this is one"),
]


@pytest.fixture(scope="module", autouse=True)
def possible() -> None:
    if not own.own_device() and (why := lab.unavailable() or lab.other_python()):
        pytest.skip(why)


def test_nothing_is_lost_wrong_or_duplicated(tmp_path: Path) -> None:
    words = [*COMMAND, "--report", str(tmp_path / "report.html")]
    done = subprocess.run(words, cwd=lab.ROOT, capture_output=True, text=True, timeout=WHOLE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    row = re.search(r"tasks .*\n\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", done.stdout)
    assert row is not None, done.stdout
    tasks, *bad = map(int, row.groups())
    assert tasks > 40
    assert bad == [0, 0, 0]
    for told in (
        r"rdma link cut\s+",
        r"rdma link healed\s+",
        r"guest killed\s+remote-2",
        r"remote-1\s+rdma\s+\d",
        r"remote-2\s+rdma\s+\d",
    ):
        assert re.search(told, done.stdout), done.stdout
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<circle") > 40


def test_ctrl_c_leaves_no_guest_behind(tmp_path: Path) -> None:
    words = [*COMMAND, "--report", str(tmp_path / "report.html")]
    demo = subprocess.Popen(words, cwd=lab.ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert demo.stderr is not None
    try:
        for line in demo.stderr:
            if "starting nodes" in line:
                break
        time.sleep(2.0)
        guests = children(demo.pid)
        assert guests
        os.kill(demo.pid, signal.SIGINT)
        assert demo.wait(60.0) == 130
    finally:
        demo.kill()
        demo.wait()
        demo.stderr.close()
    assert not [pid for pid in guests if Path(f"/proc/{pid}").exists()]


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in task.read_text().split()]
    return found
