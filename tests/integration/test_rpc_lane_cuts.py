"""A lane that is cut anywhere costs a retry of the same id on the stream: nothing runs twice, every byte is right."""

from __future__ import annotations

import select
import socket
import threading
import time

import pytest

from fabric.frame import HEADER_BYTES
from fabric.rpc_fallback.config import RpcServerConfig
from tests.integration.rpc_calls import channel_to, collected, got, node, port, request, soon, wanted
from tests.integration.rpc_node import EchoNode, serving

__all__ = ["collected", "node", "port"]
SIZE = 3 << 20


class Cutter:
    """A relay to the lane's port that cuts the connection after so many bytes one way; then it refuses everybody."""

    def __init__(self, port: int, up_bytes: int, down_bytes: int) -> None:
        self._left = {"up": up_bytes, "down": down_bytes}
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.cut = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        near, _ = self._listening.accept()
        self._listening.close()
        with near, socket.create_connection(("127.0.0.1", self._target)) as far:
            ways = {near: (far, "up"), far: (near, "down")}
            while True:
                for source in select.select(list(ways), [], [], 10.0)[0]:
                    target, way = ways[source]
                    piece = source.recv(min(65_536, self._left[way]))
                    self._left[way] -= len(piece)
                    target.sendall(piece)
                    if not piece or not self._left[way]:
                        self.cut = bool(piece)
                        return

    def close(self) -> None:
        self._thread.join(10.0)


REPLY_FRAME_BYTES = 145  # of one tensor with a name of one letter
CUTS = {
    "in the handshake": (100, 1 << 40),
    "in the body": (SIZE // 2, 1 << 40),
    "in the reply's frame": (1 << 40, 80),
    "in the reply's body": (1 << 40, SIZE // 2),
    "at the reply's last byte": (1 << 40, HEADER_BYTES + REPLY_FRAME_BYTES + SIZE - 1),
}


@pytest.mark.parametrize("cut", CUTS)
def test_the_call_is_answered_and_ran_once(node: EchoNode, port: int, cut: str) -> None:
    with channel_to(port) as channel:
        relay = Cutter(channel._lanes._port, *CUTS[cut])
        direct, channel._lanes._port = channel._lanes._port, relay.port
        call = request(1, SIZE)
        answer = channel.call(call, soon())
        relay.close()
        assert relay.cut
        assert not answer.lane
        assert got(answer) == wanted(call)
        assert node.runs[call.id] == 1
        assert channel.alive
        channel._lanes._port = direct
        deadline = soon(20.0)
        for number in range(2, 200):  # lanes come back after their back-off
            again = request(number, SIZE)
            answer = channel.call(again, deadline)
            assert got(answer) == wanted(again)
            if answer.lane:
                break
        assert answer.lane


def test_cut_while_it_runs(node: EchoNode, port: int) -> None:
    """The repeated id finds the first one running, waits for it, and gets its answer."""
    with channel_to(port) as channel:
        call = request(1, SIZE, "wait:1")

        def cut_once_it_runs() -> None:
            while not node.runs:
                time.sleep(0.005)
            channel._lanes.wake(call.id)

        breaker = threading.Thread(target=cut_once_it_runs)
        breaker.start()
        answer = channel.call(call, soon())
        breaker.join()
        assert got(answer) == wanted(call)
        assert not answer.lane
        assert node.runs[call.id] == 1


def test_a_port_without_lanes(node: EchoNode) -> None:
    with serving(node, RpcServerConfig(lanes=False)) as (_, port), channel_to(port) as channel:
        call = request(1, SIZE)
        answer = channel.call(call, soon())
        assert not answer.lane
        assert got(answer) == wanted(call)


def test_busy_lanes_send_the_rest_over_the_stream(node: EchoNode, port: int) -> None:
    with channel_to(port) as channel:
        lanes: list[bool] = []

        def ask(number: int) -> None:
            call = request(number, 300_000, "wait:2")
            answer = channel.call(call, soon())
            assert got(answer) == wanted(call)
            lanes.append(answer.lane)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(1, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20.0)
        assert sorted(lanes) == [False] * 3 + [True] * 4
