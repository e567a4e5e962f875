"""Real nodes on loopback for the router's tests: a model repository, processes that may be killed, and their marks.

Models: `echo` (idempotent: y = x + 1), `slow` (idempotent: sleeps `ms`), `ledger` (not idempotent: appends a line to a
file, then sleeps `ms`), `strings` (BYTES in and out), `lookup` (idempotent: y =
table[at]). Each run of `slow` and `ledger` leaves one line, so that a test can count executions.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Self

from discovery.instance import Readiness
from discovery.registry import open_registry
from fabric.errors import OverspillError
from workers.runtime import sweep

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

ROOT = Path(__file__).resolve().parents[2]

_ECHO = """
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs): outputs["y"] = inputs["x"] + 1
"""
_STRINGS = """
import numpy as np
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs):
        outputs["out"] = np.array([x.upper() for x in inputs["text"]], dtype=object)
"""
_LOOKUP = """
class Model:
    def __init__(self, config): pass
    def execute(self, inputs, outputs): outputs["y"] = inputs["table"][inputs["at"]]
"""
_NOTED = """
import os, time
import numpy as np
class Model:
    def __init__(self, config): self.notes = {notes!r}
    def execute(self, inputs, outputs):
        with open(self.notes, "ab", 0) as notes:
            notes.write(b"%d\\n" % int(inputs["id"][0]))
        time.sleep(int(inputs["ms"][0]) / 1000)
        outputs["pid"] = np.array([os.getppid()], np.int64)
"""
_ONE = "data_type: TYPE_INT64 dims: [ 1 ]"
_IDS = f'input [ {{ name: "id" {_ONE} }}, {{ name: "ms" {_ONE} }} ] output [ {{ name: "pid" {_ONE} }} ]'
_CONFIGS = {
    "echo": (
        (
            'input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]'
            ' output [ { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] } ]'
        ),
        _ECHO,
        True,
    ),
    "strings": (
        (
            'input [ { name: "text" data_type: TYPE_STRING dims: [ -1 ] } ]'
            ' output [ { name: "out" data_type: TYPE_STRING dims: [ -1 ] } ]'
        ),
        _STRINGS,
        True,
    ),
    "lookup": (
        (
            'input [ { name: "table" data_type: TYPE_INT32 dims: [ -1 ] }, '
            '{ name: "at" data_type: TYPE_INT64 dims: [ -1 ] } ]'
            ' output [ { name: "y" data_type: TYPE_INT32 dims: [ -1 ] } ]'
        ),
        _LOOKUP,
        True,
    ),
    "slow": (_IDS, _NOTED, True),
    "ledger": (_IDS, _NOTED, False),
}


def make_models(folder: Path) -> Path:
    """Writes the repository; notes go to `<folder>/<model>.notes`."""
    models = folder / "models"
    for name, (tensors, code, idempotent) in _CONFIGS.items():
        version = models / name / "1"
        version.mkdir(parents=True)
        flag = f'parameters {{ key: "idempotent" value {{ string_value: "{str(idempotent).lower()}" }} }}'
        (models / name / "config.pbtxt").write_text(f'name: "{name}" backend: "python" {tensors} {flag}\n')
        notes = folder / f"{name}.notes"
        (version / "model.py").write_text(code.format(notes=str(notes)) if "{notes" in code else code)
    return models


def settle() -> None:
    """Waits for helper threads that were opening a wire when their router was closed, and collects cycles: arenas lie
    in them, and their descriptors go with them."""
    end_s = time.monotonic() + 3.0
    while any(thread.name.startswith("overspill-open") for thread in threading.enumerate()):
        assert time.monotonic() < end_s, "an opener outlives its router"
        time.sleep(0.01)
    gc.collect()


class Nodes:
    """Nodes of one test, in one registry. `with` ends them all and waits for them."""

    def __init__(self, folder: Path, registry: str = "") -> None:
        self.folder = folder
        self.registry = registry or f"dir:{folder / 'registry'}"
        (folder / "registry").mkdir()
        self.models = make_models(folder)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        wires: str = "local,rpc",
        devices: str = "cpu:1",
        settings: str = "",
        environment: Mapping[str, str] | None = None,
        namespace: str = "",
    ) -> None:
        """Starts a node, with `settings` in its node.toml, perhaps in a network namespace; `wait_ready` follows."""
        log = (self.folder / f"{name}.log").open("wb")
        with log:
            words = ["node", "--registry", self.registry, "--models", str(self.models), "--wires", wires]
            words += ["--devices", devices, "--node-id", name, "--exit-with-parent"]
            if settings:
                (self.folder / f"{name}.toml").write_text(settings)
                words += ["--config", str(self.folder / f"{name}.toml")]
            self._processes[name] = subprocess.Popen(
                [*(("ip", "netns", "exec", namespace) if namespace else ()), sys.executable, "-m", "overspill", *words],
                cwd=ROOT,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def wait_ready(self, *names: str, timeout_s: float = 30.0) -> None:
        """Waits until the registry calls these nodes ready."""
        end_s = time.monotonic() + timeout_s
        ready: set[str] = set()
        while not set(names) <= ready:
            for name, process in self._processes.items():
                if name in names and process.poll() is not None:
                    raise AssertionError(f"node {name} ended: {(self.folder / f'{name}.log').read_text()}")
            if time.monotonic() > end_s:
                raise AssertionError(f"nodes {names} are not ready after {timeout_s} s; ready are {ready}")
            time.sleep(0.02)
            try:
                found = open_registry(self.registry).read()
            except OverspillError:
                continue
            ready = {one.node_id for one in found if one.readiness is Readiness.READY}

    def kill(self, name: str) -> None:
        """SIGKILLs the whole process group of a node."""
        process = self._processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)

    def kill_executors(self, name: str) -> None:
        """SIGKILLs the children of a node that run models."""
        pid = self._processes[name].pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):  # it ended since it was listed
                if b"executor" in Path(f"/proc/{child}/cmdline").read_bytes():
                    os.kill(int(child), signal.SIGKILL)

    def stop(self, name: str) -> None:
        """SIGSTOPs all processes of a node, itself first: it would take a stopped executor for a broken one."""
        for pid in self._family(name):
            os.kill(pid, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        """Ends a stop."""
        for pid in reversed(self._family(name)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def _family(self, name: str) -> list[int]:
        """The node and its children, which have sessions of their own."""
        found = [self._processes[name].pid]
        for thread in Path(f"/proc/{found[0]}/task").glob("*/children"):
            found += map(int, thread.read_text().split())
        return found

    def drain(self, name: str) -> None:
        """SIGTERM; waits for the end."""
        process = self._processes.pop(name)
        process.terminate()
        assert process.wait(20) == 0

    def notes(self, model: str) -> Counter[int]:
        """How often each id was run."""
        path = self.folder / f"{model}.notes"
        return Counter(int(line) for line in path.read_text().split()) if path.exists() else Counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, process in self._processes.items():
            self.go_on(name)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(20)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait(5)
        sweep(Path(os.environ["XDG_RUNTIME_DIR"]))  # what killed nodes left, as the next node would
