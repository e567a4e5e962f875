"""What models and clients do to their node by accident or on purpose: it outlives them, and others are served.

A model shares its process with the way to the node, so it can write to that or lose it. A client may ask for the same
answer again without end.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import threading
import time
from contextlib import ExitStack, suppress
from socket import MSG_DONTWAIT
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import ExecutorLost
from fabric.frame import RequestFrame, encode_request
from fabric.hello import Hello
from fabric.local.session import open_session
from fabric.local.sockets import seqpacket
from fabric.message import small_body, tensors_of
from tests.integration.nodes import (
    CONFIG,
    OK,
    SLEEP,
    client_of,
    fails,
    open_files,
    rough_models,
    running_node,
    soon,
    wait_until,
    write_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SPOILER = """
import os, socket, sys
from workers.handover import CONTROL_MAGIC, DONE_MAGIC
WORDS = [
    b"",
    b"x",
    b"noise" * 50,
    DONE_MAGIC + bytes(5),
    CONTROL_MAGIC + b"{",
    CONTROL_MAGIC + b'["loading", 0, [], []]',
    CONTROL_MAGIC + b'["ready", 0, [], [["nobody", [], "gone"]]]',
    CONTROL_MAGIC + b'["ready", 0, [["list"]], [1, 2]]',
]
class Model:
    def __init__(self, config):
        self.kept = []
    def execute(self, inputs, outputs):
        what, node_fd = int(inputs["x"][0]), int(sys.argv[1])
        with open(os.environ["NODE_TEST_LOG"], "a") as log:
            log.write(f"{what}\\n")
        if 0 < what < 100:
            os.write(node_fd, WORDS[what])
        if what == 100:
            os.closerange(3, 100)
        if what == 101:  # the number of the node's socket is another one's from now on
            self.kept = list(socket.socketpair())
            os.dup2(self.kept[0].fileno(), node_fd)
        outputs["y"] = inputs["x"]
"""


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    """The traceback of an expected error holds frames, and they hold arenas: those circles are no leaks."""
    yield
    gc.collect()


@pytest.fixture
def spoiled(tmp_path: Path) -> Path:
    """A repository with the model `spoiler`, which is not idempotent."""
    write_model(tmp_path / "models", "spoiler", SPOILER, CONFIG)
    return tmp_path


def test_a_node_outlives_whatever_its_executors_write_to_it(spoiled: Path) -> None:
    with running_node(spoiled, spoiled / "models", "--devices", "cpu:2") as node, client_of(node) as client:
        for what in (1, 2, 3, 4, 5, 6, 7, 100):
            try:
                assert client.call("spoiler", what) == [what, 0]
            except ExecutorLost:
                wait_until(lambda: len(node.children()) == 2)
            assert node.process.poll() is None, node.log.read_text()
        assert client.call("spoiler", 0) == [0, 0]


def test_an_executor_that_lost_its_way_to_the_node_is_replaced(spoiled: Path) -> None:
    with running_node(spoiled, spoiled / "models") as node, client_of(node) as client:
        assert client.call("spoiler", 101) == [101, 0]
        began = time.monotonic()
        assert client.call("spoiler", 0, timeout_s=30.0) == [0, 0]
        assert time.monotonic() - began < 20.0
        assert "closed its way to the node" in node.log.read_text()
        assert node.ran() == [101, 0], "the request whose end the node was not told of did not run again"


def test_a_client_that_asks_for_the_same_answer_without_end_harms_itself_alone(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as client, client_of(node, 8) as other:
        client.call("rough", SLEEP, 1000)  # so slow it is
        assert client.call("rough", OK, 1) == [0, 1]
        number = client.number
        slow = threading.Thread(target=lambda: other.call("rough", SLEEP, 1000))
        slow.start()
        wait_until(lambda: node.ran()[-1] == 1000)
        sock, _, arena = open_session(node.path, Hello(client.client_id, 0), soon(5.0))
        body = small_body(tensors_of({"x": np.array([0, 1], np.int64)}))
        layout = body.layout
        frame = encode_request(
            RequestFrame(
                client.client_id, number, 0, 1_000_000, 0, 0, layout.body_bytes, 4096, 4096, 0, 0, "rough",
                layout.encoded,
            )
        )  # fmt: skip
        sock.settimeout(20.0)
        for _ in range(6000):
            sock.send(frame)
            with suppress(BlockingIOError):  # refusals come at once, replies when the executor is free
                sock.recv(1 << 16, MSG_DONTWAIT)
        slow.join(20.0)
        sock.close()
        arena.close_fd()
        assert node.process.poll() is None, node.log.read_text()
        assert other.call("rough", OK, 2) == [0, 2]


def test_a_node_without_descriptors_starts_its_children_when_it_has_some(tmp_path: Path) -> None:
    models = rough_models(tmp_path)
    with (
        running_node(tmp_path, models, "--wires", "local,rpc", "--listen", "127.0.0.1:0") as node,
        client_of(node) as client,
    ):
        pid = node.process.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))  # what is open stays open
        for child in node.children() + node.children("workers.port"):
            os.kill(child, signal.SIGKILL)
        wait_until(lambda: node.log.read_text().count("cannot be started") >= 2)
        assert node.process.poll() is None, node.log.read_text()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        assert client.call("rough", OK, 1) == [0, 1]


def test_nothing_is_kept_of_a_client_that_left_with_a_request_in_the_queue(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, client_of(node) as other:
        other.call("rough", SLEEP, 700)  # so slow it is

        def arenas() -> int:
            return sum("overspill-arena" in each for each in open_files(node.process.pid))

        before = arenas()
        slow = threading.Thread(target=lambda: other.call("rough", SLEEP, 6000))  # a busy machine needs seconds
        slow.start()
        wait_until(lambda: node.ran() == [700, 6000])
        with client_of(node, 8) as client:
            waiting = threading.Thread(target=lambda: fails(client, "rough", OK, 1))
            waiting.start()
            wait_until(lambda: arenas() > before)
            time.sleep(0.2)  # it waits behind the other one's
            client.channel.abort("gone")
            waiting.join(20.0)
        wait_until(lambda: arenas() == before)
        slow.join(20.0)


def test_silent_strangers_do_not_keep_out_who_speaks(tmp_path: Path) -> None:
    with running_node(tmp_path, rough_models(tmp_path)) as node, ExitStack() as strangers:
        for _ in range(300):
            sock = strangers.enter_context(seqpacket())
            sock.settimeout(0.0)
            with suppress(BlockingIOError):  # the backlog is full for a moment
                sock.connect(node.path)
        time.sleep(0.5)
        with client_of(node) as client:
            assert client.call("rough", OK, 1) == [0, 1]
