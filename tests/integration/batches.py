"""Callers of a real node whose models batch, and the models: what their input says, they do."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import OverspillError
from fabric.local.channel import LocalChannel
from fabric.memory.lease import tensors
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Call
from tests.integration.nodes import IDEMPOTENT, running_node, soon, wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        if (x[:, 0] == -4).any():
            from workers.page import SharedPage
            SharedPage.answered = lambda page, task_no: os.kill(os.getpid(), signal.SIGKILL)
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
DIE, REFUSE, SLEEP, DIE_ONCE_ANSWERED = -1, -2, -3, -4


@contextmanager
def batching_node(folder: Path) -> Iterator[RunningNode]:
    """One executor, and the same model with several configurations."""
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
        """Ends the session, and lets its memory go even where pytest holds on to the caller."""
        if hasattr(self, "channel"):
            self.channel.close(soon(1.0))
            del self.channel


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
            error.__context__ = error.__cause__ = None  # tracebacks would hold the caller's arena
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
