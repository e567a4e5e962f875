"""An ensemble on two cards of one node, on fakes: right bytes whoever is killed, stopped or fails, and at which step.

Each answer is compared whole. What is asked of real cards is in `tests/hw/test_gpu_peers.py`.
"""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import DeadlineExceeded, ExecutorLost, Fate, InvalidArgument, Unavailable
from fabric.local.control import NodeControl, control_path
from tests.integration.bad_node import wait_until
from tests.integration.nodes import IDEMPOTENT
from tests.integration.split_chains import LARGE, Load, SplitNode, on_cards, write_chain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from fabric.control import ExecutorFacts
    from tests.integration.split_chains import Answer

pytestmark = pytest.mark.leaks("nodes and routers are closed by a fixture, after the test's frame let go of replies")

X = np.random.default_rng(7).random(LARGE, dtype=np.float32)
KILLS = 12
TRIES = 3
THREE = """
platform: "ensemble"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "wait" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "n" data_type: TYPE_INT64 dims: [ 1 ] }, { name: "z1" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "z2" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "on_card" data_type: TYPE_BOOL dims: [ 1 ] }
]
ensemble_scheduling { step [
  { model_name: "first_of_chain" input_map { key: "x" value: "x" }
    output_map { key: "y" value: "y" } output_map { key: "n" value: "n" } output_map { key: "who" value: "who" } },
  { model_name: "second_of_chain" input_map { key: "y" value: "y" } input_map { key: "n" value: "n" }
    input_map { key: "who" value: "who" } input_map { key: "wait" value: "wait" } output_map { key: "z" value: "z1" } },
  { model_name: "second_of_other" input_map { key: "y" value: "y" } input_map { key: "n" value: "n" }
    input_map { key: "who" value: "who" } input_map { key: "wait" value: "wait" }
    output_map { key: "z" value: "z2" } output_map { key: "on_card" value: "on_card" } }
] }
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SplitNode]:
    folder = tmp_path_factory.mktemp("legs")
    write_chain(folder / "models", on_cards(0), on_cards(1), IDEMPOTENT + memory("24MiB"))
    one = "instance_group { count: 1 kind: KIND_CPU }\n"
    write_chain(folder / "models", one, one, extra="", name="once")
    made = SplitNode(folder, devices="fake:2,cpu:2", settings="quarantine_faults = 1000\n")
    made.ask(X)  # the first goes both ways
    yield made
    made.close()


def memory(size: str) -> str:
    return f'parameters {{ key: "memory_bytes" value {{ string_value: "{size}" }} }}\n'


def facts(node: SplitNode) -> tuple[ExecutorFacts, ExecutorFacts]:
    first, second, *_ = node.executors()
    return first, second


def shared(node: SplitNode) -> int:
    """The node's descriptors of what lies between two steps, on cards or in the host's memory."""
    found = 0
    for link in Path(f"/proc/{node.node.process.pid}/fd").iterdir():
        try:
            found += any(name in str(link.readlink()) for name in ("overspill-parcel", "overspill-fake-shared"))
        except FileNotFoundError:
            continue
    return found


def more_or_over(node: SplitNode, held: int, first: Future[Answer]) -> bool:
    """Whether the node holds more than that, or the request that holds it up is over."""
    return first.done() or shared(node) > held


def test_what_lies_on_a_card_goes_to_the_other_as_it_is(node: SplitNode) -> None:
    before, _ = facts(node)
    answer = node.ask(X)
    assert answer.on_card
    assert answer.pids == [each.pid for each in facts(node)]
    after, _ = facts(node)
    assert after.passed_card_bytes - before.passed_card_bytes >= X.nbytes
    assert after.passed_host_bytes - before.passed_host_bytes < 4096, "what the host's memory has is small"
    assert not node.ask(X[:100]).on_card, "a small one is as soon in the host's memory"
    assert wait_until(lambda: not shared(node)), "the node still holds what nobody needs"


@pytest.mark.parametrize(
    ("card", "call"),
    [
        pytest.param(0, "share", marks=pytest.mark.long),
        pytest.param(0, "copy"),
        pytest.param(1, "attach"),
        pytest.param(1, "copy", marks=pytest.mark.long),
        pytest.param(1, "detach", marks=pytest.mark.long),
        pytest.param(0, "detach", marks=pytest.mark.long),
    ],
)
def test_an_executor_that_is_killed_at_any_step_costs_one_try_and_the_other_card_nothing(
    node: SplitNode, card: int, call: str
) -> None:
    node.ask(X)
    wait_until(lambda: all(each.ready for each in node.executors()))
    other = facts(node)[1 - card]
    node.file(call, card).write_text("kill")
    answer = node.ask(X)
    # Before it lets go of its mapping it has handed everything on: that it ends is nobody's business.
    assert answer.attempts == (1 if (card, call) == (0, "detach") else 2)
    assert wait_until(lambda: not node.file(call, card).exists()), "nothing was killed"
    assert facts(node)[1 - card].pid == other.pid
    assert wait_until(lambda: not shared(node))


@pytest.mark.long
def test_an_executor_that_stops_while_it_reads_costs_one_try(node: SplitNode) -> None:
    node.file("attach", 1).write_text("stop")
    assert node.ask(X).attempts == 2
    assert node.ask(X).attempts == 1


def test_what_was_handed_on_outlives_the_process_that_made_it(node: SplitNode) -> None:
    """In one of some tries: on a busy machine the second card may be free again before there is something to see."""
    for _ in range(TRIES):
        wait_until(lambda: all(each.ready for each in node.executors()))
        maker, _ = facts(node)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(node.ask, X, 1.0)
            assert wait_until(lambda: shared(node) > 0)
            held = shared(node)
            second = pool.submit(node.ask, X)  # it waits for the second card, which is busy
            wait_until(partial(more_or_over, node, held, first))
            if first.done():
                continue
            os.kill(maker.pid, signal.SIGKILL)
            assert first.result(30).attempts == 1
            answer = second.result(30)
        assert (answer.attempts, answer.pids[0]) == (1, maker.pid)
        assert wait_until(lambda: not shared(node))
        return
    raise AssertionError("the second card was never busy when something waited for it")


def test_a_card_that_gives_no_shared_memory_falls_back_to_the_hosts(node: SplitNode) -> None:
    wait_until(lambda: all(each.ready for each in node.executors()))
    before, _ = facts(node)
    node.file("share", 0).write_text("801")
    answer = node.ask(X)
    assert (answer.on_card, answer.attempts) == (False, 1)
    assert facts(node)[0].passed_fallbacks == before.passed_fallbacks + 1
    assert "go by way of the host's memory (CUDA error 801" in node.node.log
    assert node.ask(X).on_card


@pytest.mark.long
def test_more_on_its_way_than_the_ensemble_may_have_there_goes_by_the_hosts_memory(node: SplitNode) -> None:
    big = np.random.default_rng(8).random(13 << 18, dtype=np.float32)  # 13 MiB, of 24
    node.ask(big)
    before, _ = facts(node)
    with ThreadPoolExecutor(3) as pool:
        found = [each.result(30) for each in [pool.submit(node.ask, big, 0.3) for _ in range(3)]]
    assert sum(not answer.on_card for answer in found) >= 1
    assert sum(answer.on_card for answer in found) >= 1
    assert facts(node)[0].passed_fallbacks > before.passed_fallbacks
    assert wait_until(lambda: not shared(node))
    assert node.ask(big).on_card, "what came back does not count any more"


def test_an_error_of_a_step_is_the_requests(node: SplitNode) -> None:
    with pytest.raises(InvalidArgument, match="it begins with a negative number"):
        node.ask(-X)
    with pytest.raises(DeadlineExceeded):
        node.ask(X, 0.5, timeout_s=0.2)
    assert node.ask(X).attempts == 1


def test_a_card_that_cannot_read_the_other_gets_all_from_the_hosts_memory_from_then_on(node: SplitNode) -> None:
    """Last of this node's tests, since it lasts a minute."""
    node.file("attach", 1).write_text("217")
    # It had been believed to. The caller may be back before the node has heard of it, which counts as one try more.
    assert 2 <= node.ask(X).attempts <= 3
    before, _ = facts(node)
    assert not node.ask(X).on_card
    assert facts(node)[0].passed_card_bytes == before.passed_card_bytes
    assert "executor 1 cannot read the memory of executor 0's card" in node.node.log


def test_steps_on_processors_and_what_may_not_run_twice(node: SplitNode) -> None:
    answer = node.ask(X, model="once")
    assert (answer.on_card, len(set(answer.pids))) == (False, 2)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(node.ask, X, 5.0, model="once")
        assert wait_until((node.folder / "models" / "second_of_once" / "1" / "begun").exists)
        os.kill(answer.pids[1], signal.SIGKILL)
        with pytest.raises(ExecutorLost) as lost:
            asked.result(30)
    assert lost.value.fate is not Fate.NEVER_RAN
    assert wait_until(lambda: not shared(node))
    assert node.ask(X, model="once").attempts == 1


@pytest.mark.long
def test_a_chain_that_comes_back_to_its_first_card_and_takes_along_what_each_leg_gave(tmp_path: Path) -> None:
    write_chain(tmp_path / "models", on_cards(0), on_cards(1))
    write_chain(tmp_path / "models", on_cards(0), on_cards(0), name="other")
    (tmp_path / "models" / "three" / "1").mkdir(parents=True)
    (tmp_path / "models" / "three" / "config.pbtxt").write_text(THREE + IDEMPOTENT)
    node = SplitNode(tmp_path)
    try:
        inputs = {"x": X, "wait": np.zeros(1, np.float32)}
        for _ in range(4):
            with node.router.infer("three", inputs, timeout_s=30.0) as reply:
                assert np.array_equal(reply["z1"], X * np.float32(2) + np.float32(1))
                assert np.array_equal(reply["z2"], X * np.float32(2) + np.float32(1))
                assert reply["n"].tolist() == [len(X)]
                assert bool(reply["on_card"][0]), "what the first leg gave is read on its own card again"
        assert node.ask(X, model="other").on_card, "steps of one card hand on without leaving it"
        assert wait_until(lambda: not shared(node))
    finally:
        node.close()


@pytest.mark.long
def test_what_waits_between_two_steps_when_its_time_is_over_or_the_ensemble_is_loaded_anew(tmp_path: Path) -> None:
    write_chain(tmp_path / "models", on_cards(0), on_cards(1))
    write_chain(tmp_path / "models", on_cards(0), on_cards(1), extra="", name="once")
    words = [f"--load-model={each}_of_{name}" for name in ("chain", "once") for each in ("first", "second")]
    node = SplitNode(tmp_path, "--model-control", "explicit", *words, "--load-model", "chain", "--load-model", "once")
    control = NodeControl(control_path(str(tmp_path / "node.sock")))
    try:
        node.ask(X)
        node.ask(X, model="once")
        with ThreadPoolExecutor(6) as pool:
            busy = pool.submit(node.ask, X, 4.0)
            assert wait_until(lambda: shared(node) > 0)
            before = facts(node)[0].passed_card_bytes
            with pytest.raises(DeadlineExceeded) as late:
                node.ask(X, timeout_s=2.0, model="once")
            assert late.value.fate is not Fate.NEVER_RAN, "its first step has run"
            assert facts(node)[0].passed_card_bytes > before
            then = pool.submit(node.ask, X, 4.0)  # while it runs the second card loads what it is told to
            time.sleep(0.5)
            waits = pool.submit(node.ask, X)
            once = pool.submit(node.ask, X, model="once")
            time.sleep(0.5)
            loads = [pool.submit(control.load, "chain"), pool.submit(control.load, "once")]
            assert busy.result(30).attempts == then.result(30).attempts == 1  # they had begun
            assert waits.result(30).attempts == 2
            with pytest.raises(Unavailable, match="was loaded anew while the request was between two of its steps"):
                once.result(30)
            for load in loads:
                load.result(30)
        assert node.ask(X).attempts == 1
        with pytest.raises(Unavailable, match="'first_of_chain' is a step of ensemble 'chain'; unload that first"):
            control.unload("first_of_chain")
        control.unload("chain")
        control.unload("first_of_chain")
        assert wait_until(lambda: not shared(node))
    finally:
        node.close()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_both_executors_killed_again_and_again_under_load(tmp_path: Path) -> None:
    write_chain(tmp_path / "models", on_cards(0), on_cards(1))
    node = SplitNode(tmp_path, settings='quarantine_faults = 10000\nstandby = "full"\n')
    try:
        draw = np.random.default_rng(3)
        with Load(node, 4, (LARGE, 2 * LARGE)) as load:
            for _ in range(KILLS):
                assert load.round()  # so that no request meets two deaths
                assert not load.errors, load.errors
                time.sleep(float(draw.uniform(0.0, 0.1)))
                os.kill(facts(node)[int(draw.integers(2))].pid, signal.SIGKILL)
                assert wait_until(lambda: all(each.ready and each.pid for each in facts(node)))
            assert load.round()
        assert not load.errors, load.errors
        assert max(load.attempts) <= 2
        assert wait_until(lambda: not shared(node))
    finally:
        node.close()
