"""A node on fake cards: faults by number, generations, standbys, quarantine, Xids, held memory. No GPU is needed.

Each test starts one real node, its watcher and its executors, and asks through a router. Times are wide: other tests
run beside these. The same on a real card is in `tests/hw/test_gpu_faults.py`.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from discovery.registry import open_registry
from fabric.errors import OverspillError, PoisonRequest, ResourceExhausted
from overspill import Router
from tests.integration.bad_node import NodeProcess, copy_models, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from discovery.instance import CardFacts, Instance

pytestmark = pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies")

X = np.arange(64, dtype=np.float32)


class FakeNode:
    """A node with fake cards, and a router to it. `flags` are files that make an injected fault happen once."""

    def __init__(
        self, folder: Path, *faults: str, devices: str = "fake:1", standby: str = "off", extra: str = ""
    ) -> None:
        self.folder = folder
        copy_models(folder / "models", "double", "act")
        self.registry = f"dir:{folder / 'registry'}"
        inject = ",".join(f"{fault}@double:flag={folder / fault}" for fault in faults)
        settings = folder / "node.toml"
        settings.write_text(f'standby = "{standby}"\ninject = "{inject}"\nruntime_dir = "{folder}"\n{extra}')
        self.node = NodeProcess(folder, self.registry, folder / "models", "--config", str(settings), devices=devices)
        self.node.wait_ready()
        self.router = Router.connect(self.registry)

    def instance(self) -> Instance:
        (found,) = open_registry(self.registry).read()
        return found

    def card(self, number: int = 0) -> CardFacts:
        return self.instance().cards[number]

    def file(self, name: str, number: int = 0) -> Path:
        return self.folder / "fake-cards" / f"card-{number}" / name

    def ask(self, timeout_s: float = 20.0) -> tuple[int, int]:
        """(generation, attempts) of a right answer."""
        with self.router.infer("double", {"x": X}, timeout_s=timeout_s) as reply:
            assert np.array_equal(reply["y"], 2 * X)
            return reply.trace.generation, reply.trace.attempts

    def break_next(self, fault: str) -> None:
        (self.folder / fault).touch()

    def await_standby(self) -> None:
        assert wait_until(lambda: self.card().standby in {"full", "context"}, 30.0, 0.02), self.node.log

    def close(self) -> None:
        self.router.close()
        self.node.end()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., FakeNode]]:
    made: list[FakeNode] = []

    def one(*faults: str, **settings: str) -> FakeNode:
        made.append(FakeNode(tmp_path, *faults, **settings))
        return made[-1]

    yield one
    for node in made:
        node.close()


def test_no_answer_of_a_broken_context_leaves_and_the_next_generation_serves(make: Callable[..., FakeNode]) -> None:
    """R17: many ask while contexts break; every answer is right, and none comes from a generation that is over."""
    node = make("illegal_address", "trap", "assert", extra="quarantine_faults = 0\n")
    stop, answers, failures = threading.Event(), [], []

    def ask_on() -> None:
        while not stop.is_set():
            try:
                answers.append((node.ask(), time.monotonic()))
            except OverspillError as error:
                failures.append(error)

    threads = [threading.Thread(target=ask_on) for _ in range(3)]
    for thread in threads:
        thread.start()
    over: list[float] = []
    assert wait_until(lambda: len(answers) >= 10)
    for number, fault in enumerate(("illegal_address", "trap", "assert"), 1):
        node.break_next(fault)
        assert wait_until(lambda expected=number: f"(generation {expected}) met CUDA error" in node.node.log), (
            node.node.log
        )
        over.append(time.monotonic())
        assert wait_until(lambda expected=number + 1: sum(a[0][0] == expected for a in list(answers)) > 9), (
            node.node.log
        )
    stop.set()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert {generation for (generation, _), _ in answers} == {1, 2, 3, 4}
    for number, at_s in enumerate(over, 1):
        assert not [at for (generation, _), at in answers if generation <= number and at > at_s + 0.5]
    for code in (700, 719, 710):
        assert f"met CUDA error {code}" in node.node.log


def test_out_of_memory_ends_the_request_only(make: Callable[..., FakeNode]) -> None:
    node = make("oom")
    generation, _ = node.ask()
    for _ in range(5):
        node.break_next("oom")
        with pytest.raises(ResourceExhausted, match="out of memory"):
            node.router.infer("double", {"x": X}, timeout_s=0.5)
        assert node.ask() == (generation, 1)
    assert "generation" not in node.node.log


def test_a_hung_kernel_is_ended_by_its_deadline(make: Callable[..., FakeNode]) -> None:
    node = make("hang")
    node.ask()
    node.break_next("hang")
    began_s = time.monotonic()
    with pytest.raises(OverspillError):
        node.router.infer("double", {"x": X}, timeout_s=0.3)
    assert wait_until(lambda: "past its limit" in node.node.log, 10.0)
    assert time.monotonic() - began_s < 5.0
    assert node.ask()[0] == 2


@pytest.mark.parametrize("standby", ["full", pytest.param("context", marks=pytest.mark.long)])
def test_a_standby_follows_and_another_stands_by(make: Callable[..., FakeNode], standby: str) -> None:
    node = make("illegal_address", standby=standby)
    node.ask()
    node.await_standby()
    assert len(node.node.executors()) == 2
    assert wait_until(lambda: node.card().standby_bytes >= 512 << 20, 10.0, 0.05)
    node.break_next("illegal_address")
    assert node.ask() == (2, 2)
    assert "goes on as generation 2, its standby" in node.node.log
    assert wait_until(lambda: node.node.log.count("has a standby") == 2, 20.0)
    os.kill(node.node.executors()[0], signal.SIGKILL)
    assert wait_until(lambda: node.ask()[0] == 3, 10.0)


def test_a_standby_that_has_no_room_is_told_and_the_node_serves(make: Callable[..., FakeNode], tmp_path: Path) -> None:
    (tmp_path / "fake-cards" / "card-0").mkdir(parents=True)
    (tmp_path / "fake-cards" / "card-0" / "memory").write_text(str(768 << 20))
    node = make(standby="full")
    assert wait_until(lambda: node.card().standby == "no room", 10.0, 0.05)
    assert "goes without a standby" in node.node.log
    assert node.ask() == (1, 1)


def test_the_same_request_that_breaks_two_generations_is_poison(make: Callable[..., FakeNode]) -> None:
    """R22: the router tries again, and the node refuses it then."""
    node = make(extra="quarantine_faults = 0\n")
    note = node.folder / "note"
    inputs = {"what": np.array([b"kill"]), "note": np.array([str(note).encode()])}
    with pytest.raises(PoisonRequest):
        node.router.infer("act", inputs, timeout_s=20.0)
    assert len(note.read_text().splitlines()) == 2
    assert node.ask()[0] == 3


def test_five_faults_in_a_minute_are_quarantine_which_is_told(make: Callable[..., FakeNode]) -> None:
    node = make("trap", standby="full", extra="quarantine_faults = 3\n")
    node.ask()
    for number in range(3):
        node.await_standby()
        node.break_next("trap")
        if number < 2:
            assert node.ask()[1] == 2
            assert wait_until(lambda expected=number + 2: node.node.log.count("has a standby") == expected, 20.0)
        else:
            with pytest.raises(OverspillError):
                node.ask(timeout_s=1.0)
    assert wait_until(lambda: "quarantined" in node.card().state, 10.0, 0.05), node.node.log
    assert "in quarantine for 30 s" in node.node.log
    assert node.node.executors() == [] or wait_until(lambda: node.node.executors() == [], 10.0)


@pytest.mark.parametrize(
    "xid", [31, 94, pytest.param(13, marks=pytest.mark.long), pytest.param(43, marks=pytest.mark.long)]
)
def test_an_xid_of_an_application_restarts_the_process_only(make: Callable[..., FakeNode], xid: int) -> None:
    """R23. The node is idle: nobody asks, and the broken context is found all the same."""
    node = make()
    node.ask()
    node.file("xid").write_text(f"{xid}\n")
    assert wait_until(lambda: "(generation 1) met CUDA error 719" in node.node.log, 10.0), node.node.log
    assert wait_until(lambda: node.ask()[0] == 2, 10.0)
    assert node.card().state == ""


def test_an_xid_while_a_request_runs_ends_that_run_at_once(make: Callable[..., FakeNode]) -> None:
    """CUDA itself may tell much later, or never: here the kernel hangs."""
    node = make("hang")
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


def test_an_xid_that_comes_after_its_fault_ends_nobody_else(make: Callable[..., FakeNode]) -> None:
    """The card's report of what CUDA has told already must not cost the standby that has taken over."""
    node = make("illegal_address", standby="full")
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
    make: Callable[..., FakeNode], report: tuple[str, str]
) -> None:
    node = make(devices="fake:2")
    name, value = report
    node.file(name, 1).write_text(value)
    assert wait_until(lambda: "out of use" in node.card(1).state, 5.0, 0.02), node.node.log
    assert node.card(0).state == ""
    assert wait_until(lambda: len(node.node.executors()) == 1, 10.0)
    for _ in range(10):
        node.ask()


def test_a_bad_only_card_makes_the_node_not_ready_within_a_second(make: Callable[..., FakeNode]) -> None:
    node = make()
    began_s = time.monotonic()
    node.file("xid").write_text("48\n63\n")
    assert wait_until(lambda: node.instance().readiness.value == "degraded", 10.0, 0.01)
    assert time.monotonic() - began_s < 3.0  # one second where nothing else runs
    assert re.search(r"Xid 63 \(memory row remapped\): warn", node.node.log)


def test_a_restart_waits_for_memory_that_stays_held_and_the_card_comes_back(make: Callable[..., FakeNode]) -> None:
    """R20: the old process is gone, and its memory is not. The wait has a bound of ten seconds."""
    node = make()
    node.ask()
    (pid,) = node.node.executors()
    node.file("held").write_text(str(pid))
    os.kill(pid, signal.SIGKILL)
    time.sleep(1.0)
    assert node.node.executors() == []
    node.file("held").unlink()
    assert wait_until(lambda: len(node.node.executors()) == 1, 5.0, 0.01)
    assert node.ask()[0] == 2


def test_a_watcher_that_dies_or_whose_driver_is_lost_stops_nobody(make: Callable[..., FakeNode]) -> None:
    node = make("trap")
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


def test_large_inputs_are_pinned_where_they_lie_and_let_go_with_their_tenant(make: Callable[..., FakeNode]) -> None:
    node = make()
    big = np.random.default_rng(1).random(1 << 20, np.float32)
    for _ in range(3):
        with node.router.infer("double", {"x": big}, timeout_s=20.0) as reply:
            assert np.array_equal(reply["y"], 2 * big)
    with Router.connect(node.registry) as other, other.infer("double", {"x": big}, timeout_s=20.0) as reply:
        assert np.array_equal(reply["y"], 2 * big)
    assert node.ask() == (1, 1)  # the fake refuses a wrong registration, and that would have cost a generation
