"""Executors that die, stop or hang while they work: seen in time, answered with the right fate, and replaced."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import DeadlineExceeded, DuplicateRequest, ExecutorLost, Fate, PoisonRequest
from tests.integration.nodes import (
    EXIT,
    HANG,
    KILL,
    OK,
    SLEEP,
    STOP,
    SYS_EXIT,
    client_of,
    fails,
    rough_models,
    running_node,
    wait_until,
    write_model,
)

if TYPE_CHECKING:
    from pathlib import Path

SEEN_MAX_S = 3.0
"""Sooner than anything but the exit itself would tell. The promised times are held by the trials' long forms."""


@pytest.mark.parametrize(("how", "says"), [(KILL, "signal 9"), (EXIT, "code 0"), (SYS_EXIT, "code 0")])
def test_an_executor_that_ends_is_seen_at_once_and_replaced(tmp_path: Path, how: int, says: str) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        (first,) = node.children()
        assert client.call("rough", OK, 1) == [0, 1]
        error, took_s = fails(client, "rough", how, 2)
        assert isinstance(error, ExecutorLost)
        assert error.fate is Fate.UNKNOWN
        assert says in str(error)
        # A process that ends by `sys.exit` takes the interpreter's own time to do so.
        assert took_s < SEEN_MAX_S + (1.0 if how == SYS_EXIT else 0.0)
        answer = client.send("rough", OK, 3)
        assert answer.generation == 2
        assert node.children() != [first]


def test_an_idle_executor_that_is_killed_is_replaced(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        os.kill(node.children()[0], signal.SIGKILL)
        wait_until(lambda: "generation 1" in node.log.read_text())
        assert client.send("rough", OK, 1).generation == 2


@pytest.mark.parametrize("busy", [False, True])
def test_a_stopped_executor_is_killed_within_a_second(tmp_path: Path, busy: bool) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        began = time.monotonic()
        if busy:
            error, took_s = fails(client, "rough", STOP, 1)
            assert "stopped by a signal" in str(error)
        else:
            os.kill(node.children()[0], signal.SIGSTOP)
            wait_until(lambda: "stopped by a signal" in node.log.read_text())
            took_s = time.monotonic() - began
        assert took_s < 1.0 + SEEN_MAX_S
        assert client.send("rough", OK, 2).generation == 2


def test_a_hung_task_ends_with_its_deadline_and_its_executor_is_replaced(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        began = time.monotonic()
        error, _ = fails(client, "rough", HANG, 1, timeout_s=0.4)
        assert isinstance(error, (DeadlineExceeded, ExecutorLost))
        whose = "model 'rough', past its limit (its caller's time; execution_timeout_ms sets another)"
        wait_until(lambda: whose in node.log.read_text())
        assert 0.35 < time.monotonic() - began < 0.6 + SEEN_MAX_S
        assert client.send("rough", OK, 2).generation == 2


def test_a_tiny_timeout_does_not_kill_a_slow_model(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        client.call("rough", SLEEP, 400)  # so slow it is
        error, _ = fails(client, "rough", SLEEP, 600, timeout_s=0.05)
        assert isinstance(error, DeadlineExceeded)
        assert client.send("rough", OK, 2).generation == 1


def test_the_models_own_limit_wins_over_a_long_deadline(tmp_path: Path) -> None:
    models = rough_models(tmp_path)
    config = models / "rough" / "config.pbtxt"
    limit = 'parameters { key: "execution_timeout_ms" value { string_value: "150" } }'
    config.write_text(config.read_text() + limit)
    with running_node(tmp_path, models) as node, client_of(node) as client:
        error, took_s = fails(client, "rough", HANG, 1)
        assert isinstance(error, ExecutorLost)
        assert "on one request of model 'rough', past its limit;" in str(error)
        assert 0.14 < took_s < 0.35 + SEEN_MAX_S


def test_two_deaths_make_poison_and_others_are_served(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        assert isinstance(fails(client, "rough", KILL, 1)[0], ExecutorLost)
        assert isinstance(fails(client, "rough", KILL, 1, number=1)[0], ExecutorLost)
        error, _ = fails(client, "rough", KILL, 1, number=1)
        assert isinstance(error, PoisonRequest)
        assert client.call("rough", OK, 5) == [0, 5]
        assert node.ran() == [1, 1, 5]


def test_what_is_not_idempotent_never_runs_twice(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        assert isinstance(fails(client, "ledger", KILL, 1)[0], ExecutorLost)
        again, _ = fails(client, "ledger", KILL, 1, number=1)
        assert isinstance(again, (ExecutorLost, DuplicateRequest))
        assert again.fate is not Fate.NEVER_RAN
        assert client.call("ledger", OK, 2) == [0, 2]
        assert node.ran() == [1, 2]


def test_those_behind_a_death_never_ran_and_run_once_in_the_next_generation(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client:
        answers: list[int] = []

        def ask(number: int) -> None:
            with client_of(node, 100 + number) as other:
                answers.append(other.send("ledger", OK, number).generation)

        killer = threading.Thread(target=lambda: fails(client, "ledger", SLEEP, 9000, timeout_s=20.0))
        killer.start()
        wait_until(lambda: node.ran() == [9000])
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 9)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        os.kill(node.children()[0], signal.SIGKILL)
        for thread in (killer, *threads):
            thread.join(20.0)
        assert answers == [2] * 8
        assert sorted(node.ran()) == [*range(1, 9), 9000]


def test_a_model_that_kills_its_executor_at_load_is_refused_and_others_serve(tmp_path: Path) -> None:
    models = rough_models(tmp_path)
    write_model(models, "deadly", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with running_node(tmp_path, models) as node, client_of(node) as client:
        assert client.call("rough", OK, 1) == [0, 1]
        error, _ = fails(client, "deadly", OK, 1)
        assert "each time that it loaded this model" in str(error)


SOMETIMES_DEADLY = """
import os, pathlib, signal
loads = pathlib.Path(os.environ["NODE_TEST_LOG"]).with_name("loads")
with loads.open("a") as log:
    log.write("x")
if loads.stat().st_size in (2, 4):
    os.kill(os.getpid(), signal.SIGKILL)
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"]
"""


@pytest.mark.long
def test_deaths_at_load_with_a_good_one_between_them_prove_nothing(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "sometimes", SOMETIMES_DEADLY)
    with running_node(tmp_path, models) as node, client_of(node) as client:
        for good in (1, 3, 5):
            wait_until(lambda good=good: (tmp_path / "loads").stat().st_size == good, 30.0)
            wait_until(lambda: client.call("sometimes", OK, 1) == [0, 1], 30.0)
            os.kill(node.children()[0], signal.SIGKILL)


def test_nothing_outlives_a_killed_node(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path), "--node-id", "again", "--wires", "local,rpc") as node:
        children = node.children() + node.children("workers.port")
        assert len(children) == 2
        node.process.kill()
        node.process.wait(10.0)
        wait_until(lambda: not any(_alive(pid) for pid in children))
    # Its socket's folder is left, and the next life with that name takes it over and removes it.
    with running_node(tmp_path, tmp_path / "models", "--node-id", "again") as node, client_of(node) as client:
        assert client.call("rough", OK, 1) == [0, 1]


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
