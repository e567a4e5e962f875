"""Requests of many callers that run together in a real node: each gets its own, and a hostile one harms itself only."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.control import READY
from fabric.errors import (
    DeadlineExceeded,
    ExecutorLost,
    Fate,
    InvalidArgument,
    OverspillError,
    PoisonRequest,
    QueueFull,
)
from fabric.local.channel import LocalChannel
from fabric.local.control import NodeControl, control_path
from fabric.memory.lease import tensors
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Call
from tests.integration.nodes import IDEMPOTENT, running_node, soon, wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.nodes import RunningNode

CODE = """
import os, signal, time
import numpy as np
class Model:
    def __init__(self, config):
        self.log = os.environ["NODE_TEST_LOG"]
    def warm_up(self):
        time.sleep(0.001)
    def execute(self, inputs, outputs):
        x, text = inputs["x"], inputs["text"]
        with open(self.log, "a") as log:
            log.write(f"{len(x)}\\n")
        if (x[:, 0] == -1).any(): os.kill(os.getpid(), signal.SIGKILL)
        if (x[:, 0] == -2).any(): raise ValueError("two")
        if (x[:, 0] == -3).any(): time.sleep(x[0, 1] / 1000)
        outputs["y"] = x + 1
        outputs["text"] = np.array([each[::-1] for each in text], dtype=object)
"""
CONFIG = """
backend: "python"
max_batch_size: 32
input { name: "x" data_type: TYPE_INT64 dims: [ 2 ] }
input { name: "text" data_type: TYPE_STRING dims: [ ] }
output { name: "y" data_type: TYPE_INT64 dims: [ 2 ] }
output { name: "text" data_type: TYPE_STRING dims: [ ] }
"""
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 2000 }\n"
POLICY = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 100000 max_queue_size: 4 } }\n"
DIE, REFUSE, SLEEP = -1, -2, -3


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One executor, and the same model with several configurations."""
    folder = tmp_path_factory.mktemp("batching")
    models = folder / "models"
    write_model(models, "joined", CODE, CONFIG + BATCHING + IDEMPOTENT)
    write_model(models, "once", CODE, CONFIG + BATCHING)
    write_model(models, "strict", CODE, CONFIG.replace("32", "1") + POLICY + IDEMPOTENT)
    with running_node(folder, models) as running:
        yield running


class Caller:  # mutable: counts its requests
    """One client with a channel of its own."""

    _next = 1000

    def __init__(self, node: RunningNode) -> None:
        Caller._next += 1
        self.client_id = Caller._next
        self.channel = LocalChannel.open(node.path, self.client_id, soon(20.0))
        self.number = 0

    def call(
        self, model: str, x: np.ndarray, texts: list[bytes] | None = None, *, number: int = 0, timeout_s: float = 20.0,
        reply_bytes: int = 1 << 16,
    ) -> tuple[np.ndarray, list[bytes]]:  # fmt: skip
        """The outputs, copied."""
        if not number:
            self.number += 1
        texts = texts if texts is not None else [b""] * len(x)
        body = small_body(tensors_of({"x": x, "text": np.array(texts, dtype=object)}))
        call = Call(RequestId(self.client_id, number or self.number), model, body, reply_bytes=reply_bytes)
        answer = self.channel.call(call, soon(timeout_s))
        memory = answer.memory
        view = memoryview(memory) if isinstance(memory, bytes) else memory.view
        found = dict(zip((spec.name for spec in answer.layout.specs), tensors(view, answer.layout), strict=True))
        y, text = found["y"].copy(), list(found["text"])
        del found, view
        if not isinstance(memory, bytes):
            memory.release()
        return y, text

    def close(self) -> None:
        self.channel.close(soon(1.0))


@contextmanager
def callers(node: RunningNode, count: int) -> Iterator[list[Caller]]:
    """Some clients, closed with the block."""
    made = [Caller(node) for _ in range(count)]
    try:
        yield made
    finally:
        for caller in made:
            caller.close()


def at_once(calls: list[tuple[Caller, str, np.ndarray]], timeout_s: float = 20.0) -> list[object]:
    """Asks all at the same time; gives each answer or error in order."""
    results: list[object] = [None] * len(calls)

    def ask(index: int) -> None:
        caller, model, x = calls[index]
        try:
            results[index] = caller.call(model, x, timeout_s=timeout_s)[0]
        except OverspillError as error:
            results[index] = error.with_traceback(None)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return results


@contextmanager
def busy(node: RunningNode, for_ms: int) -> Iterator[None]:
    """The one executor has something to do, so that what is asked meanwhile waits together."""
    before = len(node.ran())

    def work() -> None:
        with callers(node, 1) as (caller,):
            caller.call("once", np.array([[SLEEP, for_ms]]))

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(node.ran()) > before)
    try:
        yield
    finally:
        thread.join(20.0)


def plain(number: int, rows: int = 1) -> np.ndarray:
    """Inputs that are told apart by number."""
    return np.array([[number, row] for row in range(rows)], np.int64)


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


def test_the_queues_own_limits_hold_while_the_executor_is_busy(node: RunningNode) -> None:
    with callers(node, 6) as clients, busy(node, 1500):
        began_s = time.monotonic()
        results = at_once([(caller, "strict", plain(n)) for n, caller in enumerate(clients)])
        took_s = time.monotonic() - began_s
        assert all(isinstance(result, QueueFull) for result in results)
        assert sum("wait for model" in str(result) for result in results) == 2  # four may wait
        assert 0.1 <= took_s < 1.2  # by the timer: the executor is free later
        before = len(node.ran())
        (late,) = at_once([(clients[0], "strict", plain(0))], timeout_s=0.05)
        assert isinstance(late, DeadlineExceeded)
    assert len(node.ran()) == before


def test_an_executor_that_dies_while_it_has_batches_loses_nothing_that_may_run_again(node: RunningNode) -> None:
    over, answers = threading.Event(), [0]

    def ask(caller: Caller, index: int) -> None:
        while not over.is_set():
            y, _ = caller.call("joined", plain(index))
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
    assert NodeControl(control_path(node.path)).index()[0].state == READY
