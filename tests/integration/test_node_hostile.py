"""A client that spoils its own memory while its requests run: its neighbours and the executors do not notice.

It punches holes, scribbles over bodies, replies and whatever else its arena holds, and claims places outside of it.
Everything that an executor checks it has copied before, so what comes of it is the hostile client's own wrong numbers.
"""

from __future__ import annotations

import ctypes
import os
import random
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import InvalidArgument, OverspillError
from fabric.frame import NO_SLOT, Kind, RequestFrame, check_header, decode_error, encode_request
from fabric.hello import Hello
from fabric.local.session import open_session
from fabric.memory.lease import tensors
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Call
from tests.integration.nodes import CONFIG, IDEMPOTENT, Client, client_of, running_node, soon, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.integration.nodes import RunningNode

PUNCH_HOLE_KEEP_SIZE = 3  # fallocate(2)
GATHER = """
import numpy as np
class Model:
    def __init__(self, config):
        self.table = np.arange(4096, dtype=np.int64)
    def execute(self, inputs, outputs):
        ids = inputs["x"]
        if ids.min() < 0 or ids.max() >= len(self.table):
            raise ValueError("an id is out of range")
        for _ in range(20):
            assert 0 <= ids.min() and ids.max() < len(self.table), "an id changed after its check"
            found = self.table[ids]
        outputs["y"] = found
"""
ECHO = """
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"]
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node whose model looks again at what it has checked, and one that echoes floats."""
    folder = tmp_path_factory.mktemp("node")
    write_model(folder / "models", "gather", GATHER, CONFIG + IDEMPOTENT)
    write_model(folder / "models", "echo", ECHO, CONFIG.replace("INT64", "FP32") + IDEMPOTENT)
    with running_node(folder, folder / "models", "--devices", "cpu:2") as running:
        yield running


def spoil(client: Client, stop: threading.Event, rng: random.Random) -> None:
    """Scribbles and punches until it is told to stop."""
    libc = ctypes.CDLL(None, use_errno=True)
    arena = client.channel.arena
    assert arena is not None
    busy_bytes = min(arena.nbytes, 1 << 20)  # where its slots lie
    while not stop.is_set():
        at = rng.randrange(0, busy_bytes - 4096)
        arena.view[at : at + 4096] = rng.randbytes(4096)
        hole = rng.randrange(0, busy_bytes // 4096) * 4096
        done = libc.fallocate(arena.fd, PUNCH_HOLE_KEEP_SIZE, ctypes.c_long(hole), ctypes.c_long(4096))
        assert done == 0, os.strerror(ctypes.get_errno())


def ask(client: Client, model: str, array: np.ndarray, number: int) -> np.ndarray:
    """One call; its answer as an array of its own."""
    call = Call(
        RequestId(client.client_id, number),
        model,
        small_body(tensors_of({"x": array})),
        ack_no=number,
        reply_bytes=65536,
    )
    answer = client.channel.call(call, soon(20.0))
    memory = answer.memory
    view = memoryview(memory) if isinstance(memory, bytes) else memory.view
    copy: np.ndarray = tensors(view, answer.layout)[0].copy()
    if not isinstance(memory, bytes):
        memory.release()
    return copy


@pytest.mark.parametrize("rounds", [150, pytest.param(1000, marks=pytest.mark.long)])
def test_neighbours_and_executors_do_not_notice(node: RunningNode, rounds: int) -> None:
    pids = sorted(node.children())
    rng = random.Random(rounds)
    stop = threading.Event()
    own_errors: list[OverspillError] = []
    with client_of(node, time.monotonic_ns()) as hostile, client_of(node, time.monotonic_ns()) as neighbour:
        scribbler = threading.Thread(target=spoil, args=(hostile, stop, random.Random(rounds + 1)))

        def own_requests() -> None:
            ids = np.arange(4096, dtype=np.int64)
            for number in range(1, rounds + 1):
                try:
                    ask(hostile, "gather", ids, number)
                except OverspillError as error:
                    own_errors.append(error.with_traceback(None))

        caller = threading.Thread(target=own_requests)
        for thread in (scribbler, caller):
            thread.start()
        try:
            for number in range(1, rounds + 1):
                sent = np.array([rng.random() for _ in range(rng.randrange(1, 3000))], np.float32)
                assert (ask(neighbour, "echo", sent, number) == sent).all()
        finally:
            stop.set()
            scribbler.join(20.0)
            caller.join(60.0)
    # Its ids may be out of range by its own doing; an id that changed after its check would be a ModelFailed.
    assert all(isinstance(error, InvalidArgument) for error in own_errors), own_errors
    assert sorted(node.children()) == pids


@pytest.mark.parametrize(
    ("body_at", "body_bytes", "reply_at", "capacity"),
    [
        (1 << 40, 64, NO_SLOT, 0),
        (0, 1 << 40, NO_SLOT, 0),
        (NO_SLOT - 1023, 1024, NO_SLOT, 0),
        (0, 64, 1 << 40, 64),
        (0, 64, 0, NO_SLOT),
        (0, 64, 7, 64),
        (7, 64, 0, 64),
        (NO_SLOT, 64, 0, 64),
    ],
)
def test_places_outside_of_the_arena_are_refused(
    node: RunningNode, body_at: int, body_bytes: int, reply_at: int, capacity: int
) -> None:
    client_id = time.monotonic_ns()
    descriptors = small_body(tensors_of({"x": np.zeros(8, np.float32)})).layout.encoded
    sock, _, arena = open_session(node.path, Hello(client_id), soon(5.0))
    try:
        places = (body_at, body_bytes, reply_at, capacity)
        sock.settimeout(10.0)
        sock.send(encode_request(RequestFrame(client_id, 1, 0, 1_000_000, 0, *places, 0, 0, "echo", descriptors)))
        frame = sock.recv(65536)
        header = check_header(frame)
        assert header.kind is Kind.ERROR
        assert isinstance(decode_error(frame, header).error, InvalidArgument)
    finally:
        sock.close()
        arena.close_fd()
    with client_of(node, client_id + 1) as other:
        assert ask(other, "echo", np.ones(3, np.float32), 1).tolist() == [1, 1, 1]
