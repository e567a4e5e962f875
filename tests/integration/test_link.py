"""A link to a real node over its local and its rpc wire: one breaks, and the requests on it move with their ids."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import pytest

from discovery.registry import open_registry
from fabric.deadline import Deadline
from fabric.errors import NodeLost, OverspillError
from fabric.link.config import LinkTimes
from fabric.link.link import Link
from fabric.link.loop import LoopThread
from fabric.link.table import State
from fabric.link.wires import LinkConfig
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Answer, Call, WireName
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# The pings are the real ones; only the way back is short, so that several losses fit a test.
TIMES = LinkTimes(hold_down_s=0.2, hold_down_max_s=0.4, backoff_s=0.05)
NEW_S, MOVED_S = 0.020, 0.100
"""Medians after a signalled death: of new requests on the other wire, and of those that move (DESIGN: failover)."""
CLIENT = 77
RUN_MS = 400
"""Long enough that a busy test still finds a request running when it cuts the wire."""


def after(timeout_s: float) -> Deadline:
    return Deadline.after(timeout_s, time.monotonic())


def wait(done: Callable[[], bool], timeout_s: float = 20.0) -> float:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < timeout_s, "it did not come to that in time"
        time.sleep(0.001)
    return time.monotonic() - began


def request(number: int, model: str, ms: int) -> Call:
    body = small_body(tensors_of({"id": np.array([number]), "ms": np.array([ms])}))
    return Call(RequestId(CLIENT, number), model, body)


class Asked:
    """A call in a thread of its own."""

    def __init__(self, link: Link, call: Call) -> None:
        self.outcome: Answer | OverspillError | None = None
        self.ended_at = 0.0
        self._thread = threading.Thread(target=self._run, args=(link, call), name="asked")
        self._thread.start()

    def _run(self, link: Link, call: Call) -> None:
        try:
            self.outcome = link.call(call, after(20.0))
        except OverspillError as error:
            self.outcome = error.with_traceback(None)
        self.ended_at = time.monotonic()

    def result(self) -> Answer | OverspillError | None:
        self._thread.join(15.0)
        return self.outcome


def cut_local_wire(path: str) -> int:
    """Ends the stream of every socket of this process that leads to `path`, as a broken one ends for both sides."""
    cut = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as copy:
                    if copy.family is socket.AF_UNIX and copy.getpeername() == path:
                        copy.shutdown(socket.SHUT_RDWR)
                        cut += 1
    return cut


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with Nodes(tmp_path) as started:
        started.start("n", devices="cpu:4")
        started.wait_ready("n")
        yield started


@contextmanager
def linked(nodes: Nodes) -> Iterator[Link]:
    """A link with both wires open."""
    (instance,) = open_registry(nodes.registry).read()
    with closing(LoopThread()) as loop:
        link = Link.connect(instance, CLIENT, LinkConfig(TIMES), loop)
        try:
            wait_both(link)
            yield link
        finally:
            link.close(after(2.0))
    del link
    settle()


def wait_both(link: Link) -> None:
    wait(lambda: link.statistics().state is State.PREFERRED_LIVE)


@pytest.mark.parametrize(("losses", "slack_s"), [(3, 3.0), pytest.param(25, 0.0, marks=pytest.mark.long)])
def test_the_local_wire_breaks_and_rpc_lives(nodes: Nodes, losses: int, slack_s: float) -> None:
    (instance,) = open_registry(nodes.registry).read()
    new_s, moved_s = [], []
    with linked(nodes) as link:
        assert link.wire is WireName.LOCAL
        assert link.arena is not None
        number = 0
        for _ in range(losses):
            running = [number + step for step in (1, 2)]
            number += 3
            asked = [Asked(link, request(one, "ledger", RUN_MS)) for one in running]
            wait(lambda running=running: all(nodes.notes("ledger")[one] for one in running))  # type: ignore[misc]
            began = time.monotonic()
            assert cut_local_wire(instance.local)
            link.call(request(number, "slow", 0), after(5.0))
            new_s.append(time.monotonic() - began)
            assert all(isinstance(one.result(), Answer) for one in asked), [one.outcome for one in asked]
            moved_s.append(max(one.ended_at for one in asked) - began)
            wait_both(link)
        assert link.wire is WireName.LOCAL, "it came back"
        assert link.statistics().moved >= 2 * losses
    assert set(nodes.notes("ledger").values()) == {1}, "the same id over another wire never runs again"
    # The moved ones were within their run; the new one includes a run of a Python model.
    assert median(new_s) <= NEW_S + 0.010 + slack_s, new_s
    assert median(moved_s) <= MOVED_S + RUN_MS / 1e3 + slack_s, moved_s


def test_asynchronous_calls_move_too(nodes: Nodes) -> None:
    (instance,) = open_registry(nodes.registry).read()
    with closing(LoopThread()) as loop:
        link = Link.connect(instance, CLIENT, LinkConfig(TIMES), loop)
        wait_both(link)
        running = [loop.submit(link.call_async(request(one, "ledger", RUN_MS), after(20.0))) for one in (1, 2, 3)]
        wait(lambda: len(nodes.notes("ledger")) == 3)
        assert cut_local_wire(instance.local)
        assert all(isinstance(one.result(20.0), Answer) for one in running)
        link.close(after(2.0))
    del link, running
    settle()
    assert set(nodes.notes("ledger").values()) == {1}


def test_the_node_is_killed(nodes: Nodes) -> None:
    with linked(nodes) as link:
        asked = Asked(link, request(1, "ledger", 8000))
        wait(lambda: nodes.notes("ledger")[1] == 1)
        began = time.monotonic()
        nodes.kill("n")
        lost = asked.result()
        assert isinstance(lost, NodeLost)
        assert lost.fate.name == "UNKNOWN"
        assert asked.ended_at - began < 6.0
        wait(lambda: not link.alive)


def test_the_node_is_stopped_and_goes_on(nodes: Nodes) -> None:
    """A stopped node is doubted at once, and no request is lost if it goes on soon."""
    with linked(nodes) as link:
        asked = Asked(link, request(1, "ledger", 100))
        wait(lambda: nodes.notes("ledger")[1] == 1)
        nodes.stop("n")
        took_s = wait(lambda: link.suspect or link.statistics().state is State.SUSPECT)
        nodes.go_on("n")
        assert took_s < 3.0
        assert isinstance(asked.result(), Answer), asked.outcome
    assert nodes.notes("ledger")[1] == 1


def test_another_node_at_the_local_path_is_not_local(nodes: Nodes) -> None:
    """A socket that answers with another id is no way to this node, whatever host id it claims."""
    (instance,) = open_registry(nodes.registry).read()
    nodes.start("m")
    nodes.wait_ready("m")
    other = next(one for one in open_registry(nodes.registry).read() if one.node_id == "m")
    with closing(LoopThread()) as loop:
        link = Link.connect(replace(instance, local=other.local), CLIENT, LinkConfig(TIMES), loop)
        assert link.wire is WireName.RPC
        link.call(request(1, "slow", 0), after(5.0))
        link.close(after(2.0))
    del link
    settle()
