"""A node on fake cards: faults by number, generations, standbys, quarantine. No GPU is needed.

Each test starts one real node, its watcher and its executors, and asks through a router. Times are wide: other tests
run beside these. The same on a real card is in `tests/hw/test_gpu_faults.py`. Read
`tests/integration/test_gpu_fake_cards.py` next.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import OverspillError, PoisonRequest, ResourceExhausted
from overspill import Router
from tests.hw import fault_trials
from tests.integration.bad_node import copy_models, wait_until
from tests.integration.fake_cards import FakeNode, X

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies")


def test_no_answer_of_a_broken_context_leaves_and_the_next_generation_serves(
    fake_node: Callable[..., FakeNode],
) -> None:
    """R17: many ask while contexts break; every answer is right, and none comes from a generation that is over."""
    node = fake_node("illegal_address", "trap", "assert", extra="quarantine_faults = 0\n")
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
        assert not [at for (generation, _), at in answers if generation <= number and at > at_s + 3.0]
    for code in (700, 719, 710):
        assert f"met CUDA error {code}" in node.node.log


def test_out_of_memory_ends_the_request_only(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node("oom")
    generation, _ = node.ask()
    for _ in range(5):
        node.break_next("oom")
        with pytest.raises(ResourceExhausted, match="out of memory"):
            node.router.infer("double", {"x": X}, timeout_s=0.5)
        assert node.ask() == (generation, 1)
    assert "generation" not in node.node.log


def test_a_hung_kernel_is_ended_by_its_deadline(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node("hang")
    node.ask()
    node.break_next("hang")
    began_s = time.monotonic()
    with pytest.raises(OverspillError):
        node.router.infer("double", {"x": X}, timeout_s=0.3)
    assert wait_until(lambda: "past its limit" in node.node.log, 10.0)
    assert time.monotonic() - began_s < 15.0
    assert node.ask()[0] == 2


@pytest.mark.parametrize("standby", ["full", pytest.param("context", marks=pytest.mark.long)])
def test_a_standby_follows_and_another_stands_by(
    fake_node: Callable[..., FakeNode], standby: str, tmp_path: Path
) -> None:
    (tmp_path / "fake-cards" / "card-0").mkdir(parents=True)
    # Room for a standby beside one executor, and for no third one while the broken one still holds its memory.
    (tmp_path / "fake-cards" / "card-0" / "memory").write_text(str(7 << 28))
    node = fake_node("illegal_address", standby=standby)
    node.ask()
    node.await_standby()
    assert len(node.node.executors()) == 2
    assert wait_until(lambda: node.card().standby_bytes >= 512 << 20, 10.0, 0.05)
    node.break_next("illegal_address")
    assert node.ask() == (2, 2)
    assert "goes on as generation 2, its standby" in node.node.log
    assert wait_until(lambda: node.node.log.count("has a standby") == 2, 20.0), node.node.log
    os.kill(node.node.executors()[0], signal.SIGKILL)
    assert wait_until(lambda: node.ask()[0] == 3, 10.0)


def test_a_standby_that_has_no_room_is_told_and_the_node_serves(
    fake_node: Callable[..., FakeNode], tmp_path: Path
) -> None:
    (tmp_path / "fake-cards" / "card-0").mkdir(parents=True)
    (tmp_path / "fake-cards" / "card-0" / "memory").write_text(str(768 << 20))
    node = fake_node(standby="full")
    assert wait_until(lambda: node.card().standby == "no room", 10.0, 0.05)
    assert "goes without a standby" in node.node.log
    assert node.ask() == (1, 1)


def test_what_a_full_standby_will_hold_is_no_room_for_models(
    fake_node: Callable[..., FakeNode], tmp_path: Path
) -> None:
    (tmp_path / "fake-cards" / "card-0").mkdir(parents=True)
    (tmp_path / "fake-cards" / "card-0" / "memory").write_text(str(4 << 30))
    copy_models(tmp_path / "models", "narrow")
    with (tmp_path / "models" / "narrow" / "config.pbtxt").open("a") as file:
        file.write('parameters { key: "memory_bytes" value { string_value: "3GiB" } }\n')
    node = fake_node(standby="full")
    (narrow,) = [model for model in node.instance().models if model.name == "narrow"]
    assert re.search(r"needs 3.0 GiB on fake:0 beside its standby \(full\)", narrow.refused), narrow.refused
    assert node.ask() == (1, 1)


@pytest.mark.long
def test_the_same_request_that_breaks_two_generations_is_poison(fake_node: Callable[..., FakeNode]) -> None:
    """R22: the router tries again, and the node refuses it then."""
    node = fake_node(extra="quarantine_faults = 0\n")
    note = node.folder / "note"
    inputs = {"what": np.array([b"kill"]), "note": np.array([str(note).encode()])}
    with pytest.raises(PoisonRequest):
        node.router.infer("act", inputs, timeout_s=20.0)
    assert len(note.read_text().splitlines()) == 2
    assert node.ask()[0] == 3


def test_five_faults_in_a_minute_are_quarantine_which_is_told(fake_node: Callable[..., FakeNode]) -> None:
    node = fake_node("trap", standby="full", extra="quarantine_faults = 3\n")
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


def test_large_inputs_are_pinned_where_they_lie_and_let_go_with_their_tenant(
    fake_node: Callable[..., FakeNode],
) -> None:
    node = fake_node()
    big = np.random.default_rng(1).random(1 << 20, np.float32)
    for _ in range(3):
        with node.router.infer("double", {"x": big}, timeout_s=20.0) as reply:
            assert np.array_equal(reply["y"], 2 * big)
    with Router.connect(node.registry) as other, other.infer("double", {"x": big}, timeout_s=20.0) as reply:
        assert np.array_equal(reply["y"], 2 * big)
    assert node.ask() == (1, 1)  # the fake refuses a wrong registration, and that would have cost a generation


@pytest.mark.long
@pytest.mark.parametrize("standby", ["off", "context", "full"])
def test_the_trials_for_a_real_card_find_nothing_wrong_on_a_fake_one(standby: str) -> None:
    faults = ("illegal_address", "hang", "kill")
    *trials, last = fault_trials.run("fake:1", standby, faults, 2)
    assert [trial["fault"] for trial in trials] == 2 * list(faults)
    assert all((line["wrong"], line["lost"]) == (0, []) for line in (*trials, last))
    assert sum(line["answers"] for line in (*trials, last)) > 50
    for trial in trials:
        assert trial["ready_ms"] <= trial["right_ms"] + 2.0, "times of a log have milliseconds"
        assert ("first_model_ms" in trial) == (standby != "full")
