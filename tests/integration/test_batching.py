"""Requests of many callers that run together in a real node: each gets its own, and a hostile one harms itself only."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.control import READY
from fabric.errors import ExecutorLost, Fate, InvalidArgument, PoisonRequest
from fabric.local.control import NodeControl, control_path
from tests.integration.batches import DIE, DIE_ONCE_ANSWERED, REFUSE, at_once, batching_node, busy, callers, plain
from tests.integration.nodes import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.batches import Caller
    from tests.integration.nodes import RunningNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this file."""
    with batching_node(tmp_path_factory.mktemp("batching")) as running:
        yield running


def test_what_waits_runs_together_and_the_statistics_say_so(node: RunningNode) -> None:
    control = NodeControl(control_path(node.path))
    with callers(node, 6) as clients:
        with busy(node, 300):
            results = at_once([(caller, "joined", plain(n, rows=n + 1)) for n, caller in enumerate(clients)])
        for n, y in enumerate(results):
            assert isinstance(y, np.ndarray)
            assert (y == plain(n, rows=n + 1) + 1).all()
    wait_until(lambda: control.statistics("joined")[0].success.count == 6)
    (seen,) = control.statistics("joined")
    assert (seen.inference_count, seen.execution_count) == (21, 1)
    assert [(each.batch_size, each.compute_infer.count) for each in seen.batches] == [(21, 1)]
    assert seen.queue.ns >= 6 * 50_000_000


def crowd(node: RunningNode, clients: int, seconds: float) -> int:
    """Callers that ask for random rows and texts without pause, each checking what it gets; how many requests that
    were. Some have too small a place for the reply, so that it is fetched again."""
    counts, faults = [0] * clients, list[str]()
    give_up_s = time.monotonic() + seconds

    def run(index: int, caller: Caller) -> None:
        rng = random.Random(index)
        while time.monotonic() < give_up_s and not faults:
            rows = rng.choice((1, 1, 2, 3, 8))
            x = np.array([[rng.randint(0, 1 << 60), rng.randint(0, 1 << 60)] for _ in range(rows)], np.int64)
            texts = [rng.randbytes(rng.choice((0, 1, 7, 300))) for _ in range(rows)]
            y, text = caller.call("joined", x, texts)
            counts[index] += 1
            if not (y == x + 1).all() or text != [each[::-1] for each in texts]:
                faults.append(f"client {index} got what is not its own")

    with callers(node, clients) as made:
        threads = [threading.Thread(target=run, args=each) for each in enumerate(made)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(seconds + 60.0)
    assert not faults
    assert all(counts)
    return sum(counts)


def test_every_row_returns_to_its_own_caller(node: RunningNode) -> None:
    assert crowd(node, 8, 3.0) > 100


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_every_row_of_a_million_requests_returns_to_its_own_caller(node: RunningNode) -> None:
    asked = 0
    while asked < 1_000_000:
        asked += crowd(node, 32, 60.0)


def test_a_request_that_the_model_refuses_fails_alone(node: RunningNode) -> None:
    with callers(node, 4) as clients, busy(node, 200):
        asked = [plain(1), plain(2), np.array([[REFUSE, 0]]), plain(4)]
        results = at_once([(caller, "joined", x) for caller, x in zip(clients, asked, strict=True)])
    for n in (0, 1, 3):
        assert isinstance(results[n], np.ndarray)
    assert isinstance(results[2], InvalidArgument)
    assert "two" in str(results[2])


def test_a_request_that_ends_its_executor_is_the_only_one_to_fail_and_turns_out_to_be_poison(node: RunningNode) -> None:
    with callers(node, 4) as clients:
        with busy(node, 200):
            asked = [plain(1), np.array([[DIE, 0]]), plain(3), plain(4)]
            results = at_once([(caller, "joined", x) for caller, x in zip(clients, asked, strict=True)])
        for n in (0, 2, 3):
            assert isinstance(results[n], np.ndarray), results[n]
        assert isinstance(results[1], ExecutorLost)
        with pytest.raises(PoisonRequest):
            clients[1].call("joined", np.array([[DIE, 0]]), number=1)
        # The others are not suspected of anything.
        assert (clients[0].call("joined", plain(1))[0] == plain(1) + 1).all()


def test_where_a_second_run_is_not_safe_each_learns_that_its_fate_is_unknown(node: RunningNode) -> None:
    with callers(node, 3) as clients:
        before = len(node.ran())
        with busy(node, 200):
            asked = [plain(1), np.array([[DIE, 0]]), plain(3)]
            results = at_once([(caller, "once", x) for caller, x in zip(clients, asked, strict=True)])
        assert [getattr(result, "fate", None) for result in results] == [Fate.UNKNOWN] * 3
        assert len(node.ran()) == before + 2  # the busy one, and the batch, once
        wait_until(lambda: node.state == "ready")


def test_one_that_has_its_answer_gets_no_second_one_where_its_executor_dies_before_it_could_note_so(
    node: RunningNode,
) -> None:
    with callers(node, 4) as clients:
        before = len(node.ran())
        with busy(node, 200):
            asked = [plain(1), plain(2), np.array([[DIE_ONCE_ANSWERED, 0]]), plain(4)]
            results = at_once([(caller, "joined", x) for caller, x in zip(clients, asked, strict=True)])
        for x, y in zip(asked, results, strict=True):
            assert isinstance(y, np.ndarray), y
            assert (y == x + 1).all()
        assert node.ran()[before + 1 :] == [4, 1, 1, 1], "rows: the batch, and each alone but for the one answered"
        for caller in clients:  # a second answer would be taken for that of the next call
            for n in range(3):
                assert (caller.call("joined", plain(n))[0] == plain(n) + 1).all()
    wait_until(lambda: node.state == "ready")


def test_an_executor_that_dies_while_it_has_batches_loses_nothing_that_may_run_again(node: RunningNode) -> None:
    over, answers, lost = threading.Event(), [0], list[Fate]()

    def ask(caller: Caller, index: int) -> None:
        while not over.is_set():
            try:
                y, _ = caller.call("joined", plain(index))
            except ExecutorLost as error:  # its executor died as it answered
                lost.append(error.fate)
                continue
            assert (y == plain(index) + 1).all()
            answers[0] += 1

    with callers(node, 6) as clients:
        threads = [threading.Thread(target=ask, args=(caller, n)) for n, caller in enumerate(clients)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            enough = answers[0] + 50
            wait_until(lambda enough=enough: answers[0] >= enough)
            before = node.children()
            os.kill(before[0], signal.SIGKILL)
            wait_until(lambda before=before: node.children() not in ([], before))
        over.set()
        for thread in threads:
            thread.join(30.0)
            assert not thread.is_alive()
    assert lost in ([], [Fate.UNKNOWN], [Fate.UNKNOWN] * 2), "one for each executor"
    assert NodeControl(control_path(node.path)).index()[0].state == READY
