"""One real node process for tests that mistreat it: started on a copy of the small models, watched from outside.

The models lie in `tests/integration/models`; `once`, `limited` and `hung` run the code of `act` under other settings.
Read `tests/integration/bad_ways.py` next.
"""

from __future__ import annotations

import gc
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from discovery.instance import Readiness
from discovery.registry import open_registry
from fabric.errors import OverspillError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]
MODELS = Path(__file__).parent / "models"
ACTS_LIKE = ("once", "limited", "hung")
READY_TIMEOUT_S = 40.0
END_TIMEOUT_S = 30.0


def copy_models(folder: Path, *names: str) -> Path:
    """The models of this folder's repository (all, or those named) in a new one."""
    for source in sorted(MODELS.iterdir()):
        if names and source.name not in names:
            continue
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
        if source.name in ACTS_LIKE:
            (folder / source.name / "1").mkdir()
            shutil.copy(MODELS / "act" / "1" / "model.py", folder / source.name / "1")
    return folder


def command(*words: str) -> list[str]:
    """The `overspill` command as a process of this interpreter."""
    return [sys.executable, "-m", "overspill", *words]


def wait_until(what: Callable[[], bool], timeout_s: float = 20.0, step_s: float = 0.002) -> bool:
    """Whether it became true in time."""
    end_s = time.monotonic() + timeout_s
    while not what():
        if time.monotonic() > end_s:
            return False
        time.sleep(step_s)
    return True


def collect() -> Iterator[None]:
    """The body of a fixture. An error that a test caught refers to the test's frame, and that to the router; so does a
    thread that was still opening a wire at the close. Once they are done the collector ends the circle, and the
    router's memory with it."""
    before = set(threading.enumerate())
    yield
    wait_until(lambda: set(threading.enumerate()) <= before, 2.0)
    gc.collect()


class NodeProcess:
    """A node of its own process group. `with` ends it and waits for it."""

    def __init__(
        self, folder: Path, registry: str, models: Path, *words: str, name: str = "a", devices: str = "cpu:1",
        wires: str = "local,rpc",
    ) -> None:  # fmt: skip
        self.name = name
        self.registry = registry
        self.log_file = folder / f"{name}.log"
        words = ("--registry", registry, "--models", str(models), "--node-id", name, *words)
        words = (*words, "--devices", devices, "--wires", wires, "--exit-with-parent")
        with self.log_file.open("wb") as log:
            self.process = subprocess.Popen(
                command("node", *words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    @property
    def log(self) -> str:
        """All that it wrote."""
        return self.log_file.read_text()

    def wait_ready(self) -> None:
        """Waits until the registry calls it ready."""
        assert wait_until(lambda: self._is_ready() or self.process.poll() is not None, READY_TIMEOUT_S, 0.02), self.log
        assert self.process.poll() is None, self.log

    def _is_ready(self) -> bool:
        try:
            found = open_registry(self.registry).read()
        except OverspillError:  # the node has not made the folder yet
            return False
        return any(one.node_id == self.name and one.readiness is Readiness.READY for one in found)

    def executors(self) -> list[int]:
        """The pids of its executors, oldest first."""
        return [pid for pid in self.children() if b"workers.executor" in _command_line(pid)]

    def children(self) -> list[int]:
        """The pids of its child processes."""
        try:
            threads = list(Path(f"/proc/{self.process.pid}/task").iterdir())
        except FileNotFoundError:
            return []
        found: list[int] = []
        for thread in threads:
            try:
                found += [int(pid) for pid in (thread / "children").read_text().split()]
            except FileNotFoundError:
                continue  # the thread ended since the listing
        return sorted(found)

    def kill(self) -> None:
        """SIGKILL to the node process alone: its children must end by themselves."""
        self.process.kill()
        self.process.wait(END_TIMEOUT_S)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        """Asks it to drain, and gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            return self.process.wait(END_TIMEOUT_S)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def wait_dead(pid: int, timeout_s: float) -> float | None:
    """When (monotonic seconds) a process that is not our child was seen dead; None when it lives on."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return time.monotonic()
    try:
        ready = select.select([fd], [], [], timeout_s)[0]
        return time.monotonic() if ready else None
    finally:
        os.close(fd)


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
