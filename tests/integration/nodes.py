"""A real node in a process of its own, its models written by the test, and a client that calls it over the local wire.

Times are taken here and asserted loosely by the tests: the machine may be busy. Nothing outlives the `with` block.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fabric.deadline import Deadline
from fabric.errors import OverspillError
from fabric.local.channel import LocalChannel
from fabric.memory.lease import tensors
from fabric.message import RequestId, small_body, tensors_of
from fabric.transport import Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fabric.transport import Answer

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
ROOT = Path(__file__).resolve().parents[2]

ROUGH = """
import os, signal, sys, time
class Model:
    def __init__(self, config):
        self.log = os.environ["NODE_TEST_LOG"]
    def warm_up(self):
        time.sleep(0.001)
    def execute(self, inputs, outputs):
        what, number = inputs["x"][:2]
        with open(self.log, "a") as log:
            log.write(f"{number}\\n")
        if what == 1: os.kill(os.getpid(), signal.SIGKILL)
        if what == 2: os._exit(0)
        if what == 3: time.sleep(1000)
        if what == 4: time.sleep(number / 1000)
        if what == 5: raise ValueError("five")
        if what == 6: raise KeyError("six")
        if what == 7: os.kill(os.getpid(), signal.SIGSTOP)
        if what == 8: sys.exit(0)
        outputs["y"] = inputs["x"].repeat(max(1, number if what == 9 else 1))
"""
CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_INT64 dims: [ -1 ] }
output { name: "y" data_type: TYPE_INT64 dims: [ -1 ] }
"""
IDEMPOTENT = 'parameters { key: "idempotent" value { string_value: "true" } }\n'
OK, KILL, EXIT, HANG, SLEEP, VALUE_ERROR, KEY_ERROR, STOP, SYS_EXIT, REPEAT = range(10)


def write_model(models: Path, name: str, code: str, config: str = CONFIG) -> None:
    """Puts a python model into a repository."""
    (models / name / "1").mkdir(parents=True)
    (models / name / "1" / "model.py").write_text(code)
    (models / name / "config.pbtxt").write_text(config)


def rough_models(folder: Path) -> Path:
    """A repository with `rough` (idempotent) and `ledger` (not), which do what their input says."""
    models = folder / "models"
    write_model(models, "rough", ROUGH, CONFIG + IDEMPOTENT)
    write_model(models, "ledger", ROUGH, CONFIG)
    return models


def soon(seconds: float) -> Deadline:
    """A deadline from now."""
    return Deadline.after(seconds, time.monotonic())


def wait_until(true: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Waits for something that a node does in its own time."""
    give_up_at = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < give_up_at, "it did not come to pass in time"
        time.sleep(0.01)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it ended since it was listed
        return b""


def open_files(pid: int) -> list[str]:
    """What the descriptors of a process lead to."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed since it was listed
            found.append(str(link.readlink()))
    return found


@dataclass(frozen=True, slots=True)
class RunningNode:
    """One node: its process, its log, and what its models wrote."""

    process: subprocess.Popen[bytes]
    log: Path
    runs: Path

    @property
    def path(self) -> str:
        """Where its local wire listens."""
        return re.findall(r"is \w+ at (\S+\.sock)", self.log.read_text())[-1]

    @property
    def state(self) -> str:
        """What it said last of itself."""
        found = re.findall(r"node \S+ is (\w+) at", self.log.read_text())
        return found[-1] if found else ""

    def children(self, module: str = "workers.executor") -> list[int]:
        """The pids of its children that run a module."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(FileNotFoundError, ProcessLookupError):  # the thread ended since it was listed
                found += [int(pid) for pid in task.read_text().split()]
        return [pid for pid in found if module.encode() in _command_line(pid)]

    def ran(self) -> list[int]:
        """The numbers that models wrote, once for each run."""
        return [int(line) for line in self.runs.read_text().split()] if self.runs.exists() else []

    def wait_ready(self) -> None:
        """Waits for its word that it is ready."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return self.state == "ready"

        wait_until(ready, READY_TIMEOUT_S)

    def stop(self) -> int:
        """Has it drain; gives its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_TIMEOUT_S)


@contextmanager
def running_node(folder: Path, models: Path, *words: str, ready: bool = True) -> Iterator[RunningNode]:
    """A node with local wire and one executor, unless `words` say otherwise; ended however the block ends."""
    log, runs = folder / "node.log", folder / "runs.log"
    command = [sys.executable, "-m", "overspill", "node", "--models", str(models), "--wires", "local", *words]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT,
            env={**os.environ, "NODE_TEST_LOG": str(runs)},
        )  # fmt: skip
    node = RunningNode(process, log, runs)
    try:
        if ready:
            node.wait_ready()
        yield node
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(STOP_TIMEOUT_S)


class Client:  # mutable: counts its requests
    """A caller with one session; `call` gives the output, or raises as a caller would see it."""

    def __init__(self, path: str, client_id: int = 7) -> None:
        self.channel = LocalChannel.open(path, client_id, soon(20.0))
        self.client_id = client_id
        self.number = 0

    def send(
        self,
        model: str,
        *words: int,
        number: int = 0,
        timeout_s: float = 20.0,
        reply_bytes: int = 4096,
        ack_no: int = 0,
    ) -> Answer:
        """One attempt; `number` repeats an earlier request's id."""
        if not number:
            self.number += 1
        body = small_body(tensors_of({"x": np.array([*words, 0][: max(2, len(words))], np.int64)}))
        request = RequestId(self.client_id, number or self.number)
        call = Call(request, model, body, ack_no=ack_no, reply_bytes=reply_bytes)
        return self.channel.call(call, soon(timeout_s))

    def call(
        self, model: str, *words: int, number: int = 0, timeout_s: float = 20.0, reply_bytes: int = 4096
    ) -> list[int]:
        """The output's numbers."""
        answer = self.send(model, *words, number=number, timeout_s=timeout_s, reply_bytes=reply_bytes)
        memory = answer.memory
        view = memoryview(memory) if isinstance(memory, bytes) else memory.view
        (y,) = tensors(view, answer.layout)
        found: list[int] = y.tolist()
        del y, view
        if not isinstance(memory, bytes):
            memory.release()
        return found

    def close(self) -> None:
        """Ends the session, and lets its memory go even where pytest holds on to the client."""
        self.channel.close(soon(1.0))
        del self.channel


def fails(
    client: Client, model: str, *words: int, number: int = 0, timeout_s: float = 20.0, reply_bytes: int = 4096
) -> tuple[OverspillError, float]:
    """The error of a call, and how long it took."""
    began = time.monotonic()
    try:
        client.send(model, *words, number=number, timeout_s=timeout_s, reply_bytes=reply_bytes)
    except OverspillError as error:
        # A traceback would keep the session's arena open for as long as the error is looked at.
        return error.with_traceback(None), time.monotonic() - began
    raise AssertionError("the call was answered")


@contextmanager
def cancelling(client: Client, number: int, after_s: float = 0.1) -> Iterator[None]:
    """Gives a request of the block up, again and again until the block ends: it may be late in beginning."""
    over = threading.Event()

    def cancel() -> None:
        while not over.wait(after_s):
            client.channel.cancel(RequestId(client.client_id, number))

    thread = threading.Thread(target=cancel)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(10.0)


@contextmanager
def client_of(node: RunningNode, client_id: int = 7) -> Iterator[Client]:
    """A client that is closed with the block."""
    client = Client(node.path, client_id)
    try:
        yield client
    finally:
        client.close()
