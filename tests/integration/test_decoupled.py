"""Decoupled models behind the front door: none, one or many answers to a request, one at a time, over stock streams."""

from __future__ import annotations

import queue
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.integration.frontdoors import (
    ECHO,
    code,
    config,
    given,
    grpc_client,
    http_client,
    running_front,
    wait_serving,
)
from tests.integration.nodes import wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.frontdoors import Front

COUNT = """
import os, time
class Model:
    def __init__(self, config):
        self.log = os.environ["NODE_TEST_LOG"]
    def execute(self, inputs, outputs):
        many, size, gated = inputs["x"][:3]
        for number in range(many):
            while gated and not os.path.exists(f"{self.log}.{number}"): time.sleep(0.005)
            if not gated: time.sleep(0.002)
            if number == 3 and size == -1: raise ValueError("enough")
            with open(self.log, "a") as log:
                log.write(f"{number}\\n")
            y = outputs.allocate("y", "INT64", (max(1, size),))
            y[:] = number
            yield
"""
DECOUPLED = "model_transaction_policy { decoupled: true }\n"


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("decoupled")
    write_model(folder / "models", "count", COUNT, config({"x": "-1"}, {"y": "-1"}, "INT64", DECOUPLED))
    write_model(folder / "models", "echo", ECHO, config({"x": "-1"}, {"y": "-1"}, "INT64"))
    with running_front(folder, folder / "models") as front:
        wait_serving(front, "count", "echo")
        yield front


@contextmanager
def stream(front: Front, *, cut: bool = False) -> Iterator[tuple[Any, queue.Queue[tuple[Any, Any]]]]:
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with grpc_client(front.grpc) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        try:
            yield client, answers
        finally:
            client.stop_stream(cancel_requests=cut)


def x(*words: int) -> list[Any]:
    return [given("x", np.array(words, np.int64), "INT64")]


def told(answer: tuple[Any, Any]) -> tuple[str, Any, bool]:
    """(id, first number or None, whether it is the last)."""
    result, error = answer
    assert error is None, error.message()
    response = result.get_response()
    y = result.as_numpy("y") if response.outputs else None
    final = response.parameters["triton_final_response"].bool_param
    return response.id, None if y is None else (int(y[0]), len(y)), final


def test_none_one_and_many_answers_in_order(front: Front) -> None:
    with stream(front) as (client, answers):
        for number, many in enumerate((3, 0, 1)):
            client.async_stream_infer("count", x(many, 1, 0), request_id=str(number), enable_empty_final_response=True)
        client.async_stream_infer("echo", x(7), request_id="echo")
        found = [told(answers.get(timeout=30)) for _ in range(8)]
        assert found == [
            ("0", (0, 1), False), ("0", (1, 1), False), ("0", (2, 1), False), ("0", None, True),
            ("1", None, True), ("2", (0, 1), False), ("2", None, True), ("echo", (7, 1), True),
        ]  # fmt: skip
        # Without a wish for it, the end is not told, as with Triton.
        client.async_stream_infer("count", x(2, 1, 0), request_id="a")
        client.async_stream_infer("count", x(0, 1, 0), request_id="b")
        client.async_stream_infer("count", x(1, 1, 0), request_id="c")
        assert [told(answers.get(timeout=30))[0] for _ in range(3)] == ["a", "a", "c"]


def test_answers_come_as_they_are_made_and_of_any_size(front: Front) -> None:
    with stream(front) as (client, answers):
        client.async_stream_infer("count", x(4, 1 << 17, 1), request_id="0", enable_empty_final_response=True)
        for number in range(4):  # the model makes each only after the one before was seen here
            Path(f"{front.node.runs}.{number}").touch()
            assert told(answers.get(timeout=30)) == ("0", (number, 1 << 17), False)
        assert told(answers.get(timeout=30)) == ("0", None, True)


def test_a_failure_ends_the_answers_of_its_request_only(front: Front) -> None:
    with stream(front) as (client, answers):
        client.async_stream_infer("count", x(9, -1, 0), request_id="0")
        client.async_stream_infer("count", x(1, 1, 0), request_id="1")
        assert [told(answers.get(timeout=30))[1] for _ in range(3)] == [(0, 1), (1, 1), (2, 1)]
        _, error = answers.get(timeout=30)
        assert "enough" in error.message()
        assert told(answers.get(timeout=30)) == ("1", (0, 1), False)


@pytest.mark.leaks("the stock client leaves a thread behind when it cuts a stream")
def test_a_client_that_leaves_has_the_model_stop(front: Front) -> None:
    with stream(front, cut=True) as (client, answers):
        client.async_stream_infer("count", x(1_000_000, 1, 0), request_id="0")
        assert told(answers.get(timeout=30))[1] == (0, 1)
    wait_until(lambda: rests(front))  # nobody asks for more
    with grpc_client(front.grpc) as client:
        assert client.infer("echo", x(1)).as_numpy("y").tolist() == [1]


def rests(front: Front) -> bool:
    """Whether the model makes no answer for a while."""
    before = len(front.node.ran())
    time.sleep(0.5)
    return len(front.node.ran()) == before


HANGS = """
import os, time
class Model:
    def __init__(self, config):
        self.log = os.environ["NODE_TEST_LOG"]
    def execute(self, inputs, outputs):
        try:
            while True:
                outputs["y"] = [os.getpid()]
                yield
        finally:
            hangs = not os.path.exists(self.log)
            with open(self.log, "a") as log:
                log.write("1\\n")
            if hangs: time.sleep(1000)
"""


@pytest.mark.long
@pytest.mark.leaks("the stock client leaves a thread behind when it cuts a stream")
def test_an_end_of_a_stream_that_hangs_costs_its_executor(tmp_path: Path) -> None:
    """The caller is gone, so no request of its waits: the sentinel sees it by the executor's own word."""
    write_model(tmp_path / "models", "hangs", HANGS, config({"x": "-1"}, {"y": "-1"}, "INT64", DECOUPLED))
    write_model(tmp_path / "models", "echo", ECHO, config({"x": "-1"}, {"y": "-1"}, "INT64"))
    with running_front(tmp_path, tmp_path / "models") as front:
        wait_serving(front, "hangs", "echo")
        with stream(front, cut=True) as (client, answers):
            client.async_stream_infer("hangs", x(1), request_id="0")
            first = told(answers.get(timeout=30))[1]
        with grpc_client(front.grpc) as client:
            # The next request of the same front door ends the stream, after its own answer.
            for _ in range(2):
                assert client.infer("echo", x(3), client_timeout=60.0).as_numpy("y").tolist() == [3]
        wait_until(lambda: "which no request waits for" in front.node.log.read_text())
        with stream(front, cut=True) as (client, answers):
            client.async_stream_infer("hangs", x(1), request_id="1")
            again = told(answers.get(timeout=60))[1]
        assert first is not None
        assert again is not None
        assert first[0] != again[0], "the executor that hung was not replaced"


def test_who_asks_for_one_answer_is_told(front: Front) -> None:
    with grpc_client(front.grpc) as client:
        assert code(lambda: client.infer("count", x(1, 1, 0))) == "UNIMPLEMENTED"
        assert client.get_model_config("count").config.model_transaction_policy.decoupled
    with http_client(front.http) as client:
        assert code(lambda: client.infer("count", [_http(1, 1, 0)])) == "501"


def _http(*words: int) -> Any:
    import tritonclient.http as triton_http

    tensor = triton_http.InferInput("x", [len(words)], "INT64")
    tensor.set_data_from_numpy(np.array(words, np.int64))
    return tensor
