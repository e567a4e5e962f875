"""What a node does with requests that are not the plain good one: each gets its typed error, and the next one works."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fabric.errors import (
    Cancelled,
    DeadlineExceeded,
    DuplicateRequest,
    Fate,
    InvalidArgument,
    ModelBroken,
    ModelFailed,
    QueueFull,
    UnknownModel,
)
from tests.integration.nodes import (
    CONFIG,
    IDEMPOTENT,
    KEY_ERROR,
    OK,
    REPEAT,
    SLEEP,
    VALUE_ERROR,
    Client,
    cancelling,
    client_of,
    fails,
    rough_models,
    running_node,
    wait_until,
    write_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.nodes import RunningNode


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for all tests of this file, with a queue of three for `narrow`."""
    folder = tmp_path_factory.mktemp("node")
    models = rough_models(folder)
    rough = (models / "rough" / "1" / "model.py").read_text()
    narrow = 'parameters { key: "max_queue_size" value { string_value: "3" } }'
    write_model(models, "narrow", rough, CONFIG + IDEMPOTENT + narrow)
    write_model(models, "broken", "import nothing_of_this_name")
    write_model(models, "misspelt", rough, CONFIG.replace("TYPE_INT64", "TYPE_INT65"))
    with running_node(folder, models) as running:
        yield running


@contextmanager
def busy(node: RunningNode, for_ms: int) -> Iterator[None]:
    """The one executor has something to do."""
    before = len(node.ran())

    def work() -> None:
        with client_of(node, time.monotonic_ns()) as client:
            client.send("rough", SLEEP, for_ms)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: len(node.ran()) > before)
    try:
        yield
    finally:
        thread.join(20.0)


@pytest.fixture
def client(node: RunningNode) -> Iterator[Client]:
    """A client with an id of its own, so that tests do not see each other's requests."""
    with client_of(node, time.monotonic_ns()) as one:
        yield one


@pytest.mark.parametrize(
    ("model", "words", "error", "fate", "says"),
    [
        ("nobody", (OK, 1), UnknownModel, Fate.NEVER_RAN, "has no model 'nobody'; it has broken"),
        ("broken", (OK, 1), ModelBroken, Fate.NEVER_RAN, "ModuleNotFoundError"),
        ("misspelt", (OK, 1), ModelBroken, Fate.NEVER_RAN, "TYPE_INT65"),
        ("rough", (VALUE_ERROR, 1), InvalidArgument, Fate.RAN, "refuses its inputs: five"),
        ("rough", (KEY_ERROR, 1), ModelFailed, Fate.RAN, "KeyError: 'six'"),
    ],
)
def test_refusals(client: Client, model: str, words: tuple[int, int], error: type, fate: Fate, says: str) -> None:
    found, _ = fails(client, model, *words)
    assert type(found) is error
    assert found.fate is fate
    assert says in str(found)
    assert client.call("rough", OK, 1) == [0, 1]


def test_queue_full_expiry_and_priorities(node: RunningNode, client: Client) -> None:
    order: list[int] = []

    def ask(number: int) -> None:
        with client_of(node, 1000 + number) as other:
            while True:
                try:
                    other.send("narrow", OK, 5000 + number)
                except QueueFull:  # the one below has its place for a moment
                    time.sleep(0.01)
                else:
                    order.append(number)
                    return

    with busy(node, 2500):
        expired, took_s = fails(client, "narrow", OK, 1, timeout_s=0.1)
        assert isinstance(expired, DeadlineExceeded)
        assert took_s < 1.0
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        while True:  # until the three are in the queue, this one waits there itself
            full, took_s = fails(client, "narrow", OK, 9, timeout_s=0.1)
            if isinstance(full, QueueFull):
                break
            assert isinstance(full, DeadlineExceeded)
            time.sleep(0.05)  # leaves the three a place
        assert full.fate is Fate.NEVER_RAN
        assert took_s < 1.0
    for thread in threads:
        thread.join(20.0)
    assert sorted(order) == [0, 1, 2]
    assert client.call("narrow", OK, 1) == [0, 1]
    assert 9 not in node.ran()


def test_a_waiting_request_is_cancelled_at_once(node: RunningNode, client: Client) -> None:
    with busy(node, 1500), cancelling(client, 1):
        error, took_s = fails(client, "rough", OK, 4444)
    assert isinstance(error, Cancelled)
    assert error.fate is Fate.NEVER_RAN
    assert took_s < 1.4
    assert 4444 not in node.ran()


def test_a_finished_id_is_answered_again_over_another_session_and_never_runs_twice(node: RunningNode) -> None:
    client_id = time.monotonic_ns()
    with client_of(node, client_id) as first:
        assert first.call("ledger", OK, 7001) == [0, 7001]
        assert first.call("ledger", OK, 7001, number=1) == [0, 7001]
        with client_of(node, client_id) as second:
            assert second.call("ledger", OK, 7001, number=1) == [0, 7001]
    with client_of(node, client_id) as third:  # its first tenant's memory is gone by now
        assert third.call("ledger", OK, 7001, number=1) == [0, 7001]
        third.send("ledger", OK, 7002, number=2, ack_no=2)
        error, _ = fails(third, "ledger", OK, 7001, number=1)
        assert isinstance(error, DuplicateRequest)
        assert error.fate is Fate.RAN
    assert node.ran().count(7001) == 1


def test_a_running_id_attaches_from_another_session(node: RunningNode) -> None:
    client_id = time.monotonic_ns()
    answers: list[list[int]] = []

    def ask() -> None:
        with client_of(node, client_id) as one:
            answers.append(one.call("ledger", SLEEP, 320, number=1))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join(20.0)
    assert answers == [[SLEEP, 320]] * 4
    assert node.ran().count(320) == 1


def test_a_caller_that_leaves_while_its_request_runs_finds_the_answer_later(node: RunningNode) -> None:
    client_id = time.monotonic_ns()
    with client_of(node, client_id) as client:
        error, _ = fails(client, "ledger", SLEEP, 250, timeout_s=0.02)
        assert isinstance(error, DeadlineExceeded)
        client.channel.abort("the test leaves")
    with client_of(node, client_id) as again:
        assert again.call("ledger", SLEEP, 250, number=1) == [SLEEP, 250]
    assert node.ran().count(250) == 1


def test_a_waiting_request_of_a_caller_that_left_does_not_run(node: RunningNode, client: Client) -> None:
    with busy(node, 1500), client_of(node, time.monotonic_ns()) as leaver:
        thread = threading.Thread(target=lambda: fails(leaver, "rough", OK, 6666, timeout_s=5.0))
        thread.start()
        time.sleep(0.1)
        leaver.channel.abort("the test leaves")
        thread.join(10.0)
    assert client.call("rough", OK, 1) == [0, 1]
    assert 6666 not in node.ran()


@pytest.mark.parametrize("count", [1, 600, 200_000])
def test_a_reply_that_does_not_fit_is_fetched_and_never_runs_again(
    node: RunningNode, client: Client, count: int
) -> None:
    before = len(node.ran())
    found = client.call("ledger", REPEAT, count, reply_bytes=1)
    assert len(found) == 2 * count
    assert len(node.ran()) == before + 1


def test_the_node_process_has_neither_numpy_nor_grpc(node: RunningNode, client: Client) -> None:
    client.call("rough", OK, 1)
    with open(f"/proc/{node.process.pid}/maps", encoding="utf-8") as maps:  # noqa: PTH123 - a file of the kernel's
        mapped = maps.read()
    assert "numpy" not in mapped
    assert "grpc" not in mapped
    assert "python" in mapped  # so the two lines above can fail
