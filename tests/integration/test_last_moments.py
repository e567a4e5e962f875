"""An executor that dies as it answers, or while its caller leaves: one outcome for each time that somebody asked, and
no memory of whoever is gone."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.frame import STREAM, ErrorFrame, Kind, bare_frame, check_header, decode_final, pack_request
from fabric.hello import Hello
from fabric.local.session import open_session
from fabric.message import small_body, tensors_of
from tests.integration.nodes import IDEMPOTENT, running_node, soon, wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.frame import ReplyFrame
    from tests.integration.nodes import RunningNode

MODEL = """
import os, signal, time
from workers import executor
def dies_once_it_has_answered():
    deliver = executor.Executor._deliver
    executor.Executor._deliver = lambda *given: (deliver(*given), os.kill(os.getpid(), signal.SIGKILL))
class Model:
    def __init__(self, config):
        self.log = os.environ["NODE_TEST_LOG"]
    def execute(self, inputs, outputs):
        x = inputs["x"]
        with open(f"{self.log}.{len(x)}.{x[0, 1]}", "w") as pid: pid.write(str(os.getpid()))
        with open(self.log, "a") as log: log.write(f"{len(x)}\\n")
        what = x[0, 0]
        if what in (1, 2): dies_once_it_has_answered()
        if what in (2, 5): raise ValueError(str(what))
        if (x[:, 0] == 3).any(): time.sleep(0.3)
        outputs["y"] = x.repeat(PIECES, axis=1)
"""
STREAM_MODEL = (
    MODEL.partition("class")[0]
    + """
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        for number in range(3):
            if number == inputs["x"][0, 0]: dies_once_it_has_answered()
            outputs["y"] = inputs["x"] * 0 + number
            yield
"""
)
PIECES = 1000
ONE = "instance_group { count: 1 }\n" + IDEMPOTENT
TOGETHER = "max_batch_size: 2\ndynamic_batching { preserve_ordering: true max_queue_delay_microseconds: 10000000 }\n"
CHAIN = """
platform: "ensemble"
max_batch_size: 2
input { name: "x" data_type: TYPE_INT64 dims: [ 2 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ 2 ] }
ensemble_scheduling { step [
  { model_name: "first" input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
  { model_name: "second" input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
] }
"""


def config(columns: int, extra: str) -> str:
    rows = "" if "max_batch_size" in extra else "max_batch_size: 2\n"
    return (
        f'backend: "python"\n{rows}input {{ name: "x" data_type: TYPE_INT64 dims: [ 2 ] }}\n'
        f'output {{ name: "y" data_type: TYPE_INT64 dims: [ {columns} ] }}\n{extra}'
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("moments")
    models, small = folder / "models", MODEL.replace("PIECES", "1")
    write_model(models, "large", MODEL.replace("PIECES", str(PIECES)), config(2 * PIECES, IDEMPOTENT))
    write_model(models, "together", small, config(2, TOGETHER + ONE))
    write_model(models, "first", small, config(2, ONE))
    write_model(models, "second", small, config(2, ONE))
    decoupled = config(2, "max_batch_size: 0\nmodel_transaction_policy { decoupled: true }\n" + IDEMPOTENT)
    write_model(models, "stream", STREAM_MODEL, decoupled.replace("dims: [ 2 ]", "dims: [ -1, 2 ]"))
    write_model(models, "chain", "", CHAIN + IDEMPOTENT)
    with running_node(folder, models, "--devices", "cpu:2") as running:
        yield running


class Caller:  # mutable: counts its requests
    """One client that reads what it is sent frame by frame."""

    _next = 7000

    def __init__(self, node: RunningNode) -> None:
        Caller._next += 1
        self.client_id = Caller._next
        self.sock, _, self.arena = open_session(node.path, Hello(self.client_id, 0), soon(20.0))

    def ask(self, model: str, *x: int, number: int = 5, capacity: int = 4096, flags: int = 0) -> None:
        body = small_body(tensors_of({"x": np.array([x], np.int64)}))
        view, at = body.view(), number % 2 << 17
        self.arena.view[at : at + len(view)] = view
        places = (at, len(view), at + (1 << 16), capacity)
        frame = pack_request(
            self.client_id, number, 0, 20_000_000, 0, *places, 0, 0, model, body.layout.encoded, flags
        )  # fmt: skip
        self.sock.send(frame)

    def frame(self) -> bytes:
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        assert poll.poll(20_000), "it hangs"
        return self.sock.recv(1 << 17)

    def told(self) -> ReplyFrame | ErrorFrame:
        return decode_final(self.frame())

    def told_no_more(self) -> bool:
        """Whether nothing is on its way."""
        self.sock.send(bare_frame(Kind.PING, self.client_id, 1))
        return check_header(self.frame()).kind is Kind.PONG

    def close(self) -> None:
        self.sock.close()
        self.arena.close_fd()


def mapped(node: RunningNode) -> int:
    """How many arenas its executors have mapped."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in node.children())
    return maps.count("/memfd:") - maps.count("/memfd:overspill-executor")


def deaths(node: RunningNode) -> int:
    """Of how many executors it has written; whoever asked was told before that."""
    return node.log.read_text().count("was ended by signal 9")


@pytest.mark.parametrize(
    ("model", "x", "answers", "flags", "again"),
    [("stream", 0, 0, STREAM, 9), ("stream", 1, 1, STREAM, 9), ("large", 1, 0, 0, 0), ("large", 2, 0, 0, 0)],
    ids=["a stream's first answer", "a stream's second answer", "a reply that is too large", "an error"],
)
def test_whoever_may_ask_again_is_told_once_each_time(
    node: RunningNode, model: str, x: int, answers: int, flags: int, again: int
) -> None:
    caller, before = Caller(node), deaths(node)
    for _ in range(answers):
        caller.ask(model, x, 0, flags=flags)
        assert not isinstance(caller.told(), ErrorFrame)
    caller.ask(model, x, 0, flags=flags)
    caller.told()
    wait_until(lambda: deaths(node) > before)
    assert caller.told_no_more(), "it could not tell what that is of"
    caller.ask(model, again, 0, capacity=1 << 16, flags=flags)
    caller.told()
    assert caller.told_no_more()
    caller.close()


def test_what_a_caller_wanted_that_left_takes_no_second_step(node: RunningNode) -> None:
    caller, before = Caller(node), len(node.ran())
    caller.ask("chain", 3, 77)
    wait_until(lambda: len(node.ran()) > before)
    caller.close()
    last = Caller(node)
    last.ask("chain", 4, 78)  # behind it
    assert not isinstance(last.told(), ErrorFrame)
    last.close()
    assert len(node.ran()) == before + 3
    wait_until(lambda: mapped(node) == 0)


def test_what_a_caller_wanted_that_left_runs_no_second_time(node: RunningNode) -> None:
    gone, stays, before = Caller(node), Caller(node), len(node.ran())
    gone.ask("together", 3, 79)
    stays.ask("together", 4, 80)
    wait_until(lambda: len(node.ran()) > before)
    gone.close()
    assert stays.told_no_more(), "the node knows by now"
    found = [Path(f"{node.runs}.2.{number}") for number in (79, 80)]
    os.kill(int(next(path.read_text() for path in found if path.exists())), signal.SIGKILL)
    assert not isinstance(stays.told(), ErrorFrame)
    assert node.ran()[before:] == [2, 1]
    stays.close()
    wait_until(lambda: mapped(node) == 0)


def test_answers_that_are_to_come_in_order_do_so_where_one_is_an_error(node: RunningNode) -> None:
    caller = Caller(node)
    for number in range(10, 50, 2):
        caller.ask("together", 5, 0, number=number)
        caller.ask("together", 4, 0, number=number + 1)
        told = caller.told(), caller.told()
        assert [each.request_no for each in told] == [number, number + 1]
    caller.close()
