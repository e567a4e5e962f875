"""The demo, run as its user runs it: nothing lost, wrong or duplicated, and nothing left behind, Ctrl-C or not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from overspill.demo.work import _deaf_children, _pool

pytestmark = pytest.mark.timeout(600)
RUN_TIMEOUT_S = 180.0
DEMO = [sys.executable, "-m", "overspill", "demo"]


@pytest.fixture
def scratch():
    """A folder for the demo's temporary files, with a path short enough for Unix sockets in it."""
    with tempfile.TemporaryDirectory(prefix="osp-") as name:
        yield Path(name)


def demo(tmp_path: Path, scratch: Path, *arguments: str) -> str:
    """Runs the demo with its temporary files in `scratch`, and gives what it printed; asserts that it left nothing."""
    command = [*DEMO, "--report", str(tmp_path / "report.html"), *arguments]
    env = {**os.environ, "TMPDIR": str(scratch)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, env=env, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list(scratch.iterdir()), "the demo left files behind"
    return done.stdout


def assert_held(text: str) -> None:
    """Reads the first table: tasks, lost, wrong, duplicated, unknown, retried."""
    row = re.search(r"tasks .*\n\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", text)
    assert row is not None, text
    tasks, *bad = map(int, row.groups())
    assert tasks > 20, text
    assert bad == [0, 0, 0], text
    assert "executor killed" in text, text
    assert "node killed" in text, text
    assert re.search(r"\brpc\b", text), "nothing was spilled"


def test_on_a_generated_city(tmp_path, scratch):
    assert_held(demo(tmp_path, scratch, "--seed", "3", "--limit-s", "2"))
    page = (tmp_path / "report.html").read_text()
    assert page.count("<circle") > 20
    assert "node killed" in page


def test_on_real_data(tmp_path, scratch, data_dir):
    assert_held(demo(tmp_path, scratch, "--data", str(data_dir), "--seed", "4", "--limit-s", "2"))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 21))
def test_on_real_data_with_many_seeds(tmp_path, scratch, data_dir, seed):
    assert_held(demo(tmp_path, scratch, "--data", str(data_dir), "--seed", str(seed), "--limit-s", "4"))


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path, scratch, end):
    command = [*DEMO, "--report", str(tmp_path / "report.html"), "--limit-s", "3"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if "starting nodes" in line:
                break
        time.sleep(2.0)  # in the middle of it, wherever that is on this machine
        process.send_signal(end)
        process.communicate(timeout=60)
        assert process.returncode in (130, 0), "it may have been done already"
    finally:
        process.kill()
        process.wait()
    assert not list(scratch.iterdir())
    assert not nodes_under(scratch)


def nodes_under(folder: Path) -> list[int]:
    """Processes that still use a path in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def deaf(_: int) -> bool:
    """Whether this process is deaf to Ctrl-C."""
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_every_process_that_makes_the_round_is_deaf_to_ctrl_c():
    with _pool() as pool:
        with _deaf_children():
            answers = pool.map(deaf, range(8))
        assert all(answers)
        assert all(pool.map(deaf, range(8)))
    assert not deaf(0)


@pytest.mark.parametrize("after_s", [0.2, 2.0])
def test_ctrl_c_while_the_round_is_made_prints_one_line(tmp_path, scratch, after_s):
    process = subprocess.Popen(
        [*DEMO, "--report", str(tmp_path / "report.html"), "--limit-s", "20"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(scratch)},
        start_new_session=True,  # as a terminal does: the signal goes to the whole group
    )
    try:
        assert process.stderr is not None
        assert "making the round" in process.stderr.readline()
        time.sleep(after_s)
        os.killpg(process.pid, signal.SIGINT)
        _, told = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert told == "overspill: interrupted\n"
    assert not list(scratch.iterdir())


def test_a_report_that_cannot_be_written_is_told_at_once(tmp_path):
    command = [*DEMO, "--report", str(tmp_path / "missing" / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "give another --report" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("registry", "code", "told"),
    [
        ("consul:http://127.0.0.1:1", 3, "nothing listens there; start a Consul agent"),
        ("static:127.0.0.1:1", 2, "give dir:PATH or consul:URL"),
        ("http://127.0.0.1:8500", 2, "give dir:PATH, consul:http://HOST:PORT"),
    ],
)
def test_a_registry_that_nodes_could_not_enter_is_told_at_once(tmp_path, registry, code, told):
    command = [*DEMO, "--registry", registry, "--report", str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "making the round" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_the_data_is_told_at_once(tmp_path):
    command = [*DEMO, "--data", str(tmp_path), "--report", str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert "give another --data" in done.stderr
    assert "Traceback" not in done.stderr
