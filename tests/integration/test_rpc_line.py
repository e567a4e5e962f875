"""The line of an rdma connection over gRPC: the end of either side is told to the other, and no thread waits for it."""

from __future__ import annotations

import queue
import socket
import time
from typing import TYPE_CHECKING

import pytest

from fabric.deadline import Deadline
from fabric.errors import DeadlineExceeded, Fate, NodeLost, Unavailable
from fabric.frame import check_header, decode_error
from fabric.rpc_fallback.bootstrap import bring_offer
from fabric.rpc_fallback.config import RpcConfig, RpcServerConfig
from fabric.rpc_fallback.server import RpcServer
from fabric.transport import PeerFacts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.rpc_fallback.held_call import HeldCall
    from fabric.transport import Channel

TOLD_S = 10.0
"""It takes milliseconds; the machine may be busy."""
LINES = 12


class Port:
    """A gRPC port with fewer threads than lines, and the other ends of the sockets that its rdma port would have."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.answer = b"terms"
        config = RpcServerConfig(host="127.0.0.1", threads_max=2)
        self.server = RpcServer(config, self._nobody, PeerFacts("n", 1, 1), self._bootstrap)
        self.address = f"127.0.0.1:{self.server.start()}"

    def _nobody(self, _client_id: int, _nbytes: int) -> Channel:
        raise Unavailable("there is no node behind this port; it is a test's")

    def _bootstrap(self, client_id: int, offer: bytes, timeout_s: float) -> tuple[bytes, socket.socket]:
        assert (client_id, offer) == (7, b"offer")
        if not self.answer:
            time.sleep(min(timeout_s, 1.5))
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(TOLD_S)
        self.ends.append(ours)
        return self.answer, theirs

    def offer(self, timeout_s: float = 20.0) -> tuple[HeldCall, queue.SimpleQueue[tuple[str, bool]]]:
        """A line, and where its end is told."""
        deadline = Deadline.after(timeout_s, time.monotonic())
        answer, line = bring_offer(self.address, 7, RpcConfig(), b"offer", deadline)
        assert answer == self.answer
        told: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()
        line.watch(lambda why, by_them: told.put((why, by_them)))
        return line, told


@pytest.fixture
def port() -> Iterator[Port]:
    made = Port()
    yield made
    made.server.stop(0.0)
    for end in made.ends:
        end.close()


def test_the_rdma_port_hangs_up_and_the_caller_is_told_so(port: Port) -> None:
    lines = [port.offer() for _ in range(LINES)]
    port.ends[3].close()
    assert lines[3][1].get(timeout=TOLD_S)[1], "it was told, not just broken"
    assert all(told.empty() for number, (_, told) in enumerate(lines) if number != 3)
    for line, _ in lines:
        line.close()


def test_the_caller_hangs_up_and_the_rdma_port_is_told(port: Port) -> None:
    line, told = port.offer()
    other, _ = port.offer()
    line.close()
    assert port.ends[0].recv(1) == b""
    line.close()
    assert told.empty(), "who hangs up need not be told"
    port.ends[1].settimeout(0.2)
    with pytest.raises(TimeoutError):
        port.ends[1].recv(1)
    other.close()


def test_the_port_ends_and_both_are_told(port: Port) -> None:
    line, told = port.offer()
    port.server.stop(1.0)
    assert told.get(timeout=TOLD_S)
    assert port.ends[0].recv(1) == b""
    line.close()


def test_a_line_that_ended_before_it_was_watched_is_told_at_once(port: Port) -> None:
    deadline = Deadline.after(20.0, time.monotonic())
    _, line = bring_offer(port.address, 7, RpcConfig(), b"offer", deadline)
    port.ends[0].close()
    time.sleep(0.3)
    told: queue.SimpleQueue[bool] = queue.SimpleQueue()
    line.watch(lambda _, by_them: told.put(by_them))
    assert told.get(timeout=TOLD_S)
    line.close()


def test_an_offer_that_is_not_answered_ends_at_its_deadline(port: Port) -> None:
    port.answer = b""
    began_s = time.monotonic()
    with pytest.raises(DeadlineExceeded) as late:
        port.offer(timeout_s=0.5)
    assert late.value.fate is Fate.NEVER_RAN
    assert time.monotonic() - began_s < 10.0
    while not port.ends:
        assert time.monotonic() - began_s < TOLD_S
        time.sleep(0.01)
    assert port.ends[0].recv(1) == b"", "an answer that comes too late has no caller"


def test_nobody_there_is_said_and_leaves_nothing(port: Port) -> None:
    port.server.stop(0.0)
    with pytest.raises(NodeLost) as gone:
        port.offer(timeout_s=2.0)
    assert gone.value.fate is Fate.NEVER_RAN


def test_a_node_without_rdma_refuses_in_words() -> None:
    config = RpcServerConfig(host="127.0.0.1", threads_max=2)

    def nobody(_client_id: int, _nbytes: int) -> Channel:
        raise Unavailable("there is no node behind this port; it is a test's")

    server = RpcServer(config, nobody, PeerFacts("n", 1, 1))
    address = f"127.0.0.1:{server.start()}"
    answer, line = bring_offer(address, 7, RpcConfig(), b"offer", Deadline.after(20.0, time.monotonic()))
    assert "--wires" in str(decode_error(answer, check_header(answer)).error)
    line.close()
    server.stop(0.0)
