"""What fake cards report, and what a node does about it: Xids, recovery actions, held memory, a lost driver."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.bad_node import command, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.fake_cards import FakeNode

pytestmark = pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies")


@pytest.mark.parametrize("xid", [31, *(pytest.param(xid, marks=pytest.mark.long) for xid in (13, 43, 94))])
def test_an_xid_of_an_application_restarts_the_process_only(fake_node: Callable[..., FakeNode], xid: int) -> None:
    """R23. The node is idle: nobody asks, and the broken context is found all the same."""
    node = fake_node()
    node.ask()
    node.file("xid").write_text(f"{xid}\n")
    assert wait_until(lambda: "(generation 1) met CUDA error 719" in node.node.log, 10.0), node.node.log
    assert wait_until(lambda: node.ask()[0] == 2, 10.0)
    assert node.card().state == ""


def test_an_xid_while_a_request_runs_ends_that_run_at_once(fake_node: Callable[..., FakeNode]) -> None:
    """CUDA itself may tell much later, or never: here the kernel hangs."""
    node = fake_node("hang")
    node.ask()
    time.sleep(1.0)  # until the watcher has seen who holds the card's memory
    node.break_next("hang")
    asked = threading.Thread(target=node.ask)  # the router tries again, and then it is answered
    asked.start()
    assert wait_until(lambda: not (node.folder / "hang").exists())
    began_s = time.monotonic()
    node.file("xid").write_text("43\n")
    asked.join(15)
    assert time.monotonic() - began_s < 10.0
    assert "ran a request while its GPU reported Xid 43" in node.node.log
    assert node.ask()[0] == 2


def test_an_xid_that_comes_after_its_fault_ends_nobody_else(fake_node: Callable[..., FakeNode]) -> None:
    """The card's report of what CUDA has told already must not cost the standby that has taken over."""
    node = fake_node("illegal_address", standby="full")
    node.ask()
    node.await_standby()
    node.break_next("illegal_address")
    assert node.ask() == (2, 2)
    stop = threading.Event()

    def ask_on() -> None:
        while not stop.is_set():
            node.ask()

    asking = threading.Thread(target=ask_on)
    asking.start()
    node.file("xid").write_text("31\n")
    time.sleep(0.3)
    stop.set()
    asking.join(20)
    assert "reported Xid 31" in node.node.log
    assert "ran a request while" not in node.node.log


@pytest.mark.parametrize("report", [("xid", "79"), ("recovery", "1")])
def test_a_bad_card_is_taken_out_of_use_and_the_other_serves(
    fake_node: Callable[..., FakeNode], report: tuple[str, str]
) -> None:
    node = fake_node(devices="fake:2")
    name, value = report
    node.file(name, 1).write_text(value)
    assert wait_until(lambda: "out of use" in node.card(1).state, 5.0, 0.02), node.node.log
    assert node.card(0).state == ""
    assert wait_until(lambda: len(node.node.executors()) == 1, 10.0)
    for _ in range(10):
        node.ask()


def test_a_bad_only_card_makes_the_node_not_ready_within_a_second(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node()
    began_s = time.monotonic()
    node.file("xid").write_text("48\n63\n")
    assert wait_until(lambda: node.instance().readiness.value == "degraded", 10.0, 0.01)
    assert time.monotonic() - began_s < 10.0  # one second where nothing else runs
    assert wait_until(lambda: "Xid 63 (memory row remapped): warn" in node.node.log, 10.0)


def test_a_restart_waits_for_memory_that_stays_held_and_the_card_comes_back(fake_node: Callable[..., FakeNode]) -> None:
    """R20: the old process is gone, and its memory is not. The wait has a bound of ten seconds."""
    node = fake_node()
    node.ask()
    (pid,) = node.node.executors()
    node.file("held").write_text(str(pid))
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    assert node.node.executors() == []
    node.file("held").unlink()
    assert wait_until(lambda: len(node.node.executors()) == 1, 9.0, 0.01)
    assert node.ask()[0] == 2


def test_a_watcher_that_dies_or_whose_driver_is_lost_stops_nobody(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node("trap")
    node.ask()
    node.file("lost").touch()
    assert wait_until(lambda: "cannot be watched" in node.node.log, 10.0)
    node.break_next("trap")
    assert node.ask() == (2, 2)
    node.file("lost").unlink()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in node.node.children()}
    (watcher,) = [pid for pid, words in commands.items() if b"workers.cuda.watcher" in words]
    os.kill(watcher, signal.SIGKILL)
    assert wait_until(lambda: "is started again" in node.node.log, 10.0)
    assert node.ask()[0] == 2
    assert wait_until(lambda: "are watched again" in node.node.log, 10.0)
    node.file("xid").write_text("31\n")
    assert wait_until(lambda: "(generation 2) met CUDA error 719" in node.node.log, 10.0), node.node.log


@pytest.mark.long
def test_an_idle_context_that_broke_by_itself_is_found_by_a_probe(fake_node: Callable[..., FakeNode]) -> None:
    """R25: nobody asks, and the card reports nothing."""
    node = fake_node(standby="full")
    node.ask()
    node.await_standby()
    node.file("error").write_text("719")
    assert wait_until(lambda: "(generation 1) met CUDA error 719" in node.node.log, 30.0), node.node.log
    node.file("error").unlink()
    assert wait_until(lambda: len(node.node.executors()) == 2, 30.0)
    assert node.ask()[0] > 1


def test_without_a_driver_a_node_on_cuda_says_so(tmp_path: Path) -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has NVIDIA's driver")
    (tmp_path / "models").mkdir()
    words = ("--models", str(Path(__file__).parent / "models"), "--devices", "cuda:all", "--wires", "local")
    ended = subprocess.run(command("node", *words), capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "no GPU can be used" in ended.stderr
    assert "Traceback" not in ended.stderr
