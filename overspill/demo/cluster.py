"""The demo's nodes: real `overspill node` processes on this machine, started, killed and always cleaned up.

The remote nodes offer the rpc wire only, so nothing reaches them over shared memory. Everything lives in one temporary
folder and ends with the demo, also when the demo is killed (`--exit-with-parent`). Read `overspill/demo/drive.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from discovery.instance import Readiness
from discovery.registry import open_registry
from fabric.errors import RegistryUnavailable, Unavailable

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

READY_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 8.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """One node that the demo started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def executors(self) -> list[int]:
        """The pids of its executors, read from /proc."""
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            with suppress(OSError):
                found += [int(pid) for pid in task.read_text().split()]
        return [pid for pid in found if b"workers.executor" in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


class Cluster:  # mutable: owns processes
    """The demo's nodes, as a context manager that leaves nothing behind."""

    def __init__(self, folder: Path, registry: str, models: Path, env: Mapping[str, str]) -> None:
        self.folder = folder
        self.registry = registry
        self.models = models
        self.env = {**os.environ, **env}
        self.nodes: list[NodeProcess] = []

    def start(self, names_and_wires: Sequence[tuple[str, str]]) -> None:
        """Starts one node for each (name, wires), with one CPU executor, and waits until all are ready.

        Raises Unavailable, with the end of the node's own output, when one does not come up.
        """
        for name, wires in names_and_wires:
            log = self.folder / f"{name}.log"
            command = [sys.executable, "-m", "overspill", "node", "--registry", self.registry, "--node-id", name]
            command += ["--models", str(self.models), "--devices", "cpu:1", "--wires", wires]
            command += ["--listen", "127.0.0.1:0", "--config", str(self._node_toml(name)), "--exit-with-parent"]
            with log.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - our own command
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=self.env,
                    start_new_session=True,
                )
            self.nodes.append(NodeProcess(name, process, log))
        self._wait_ready([name for name, _ in names_and_wires])

    def _node_toml(self, name: str) -> Path:
        """Settings that have no argument. Three nodes share this machine, so more threads each would only take turns; a
        killed node cannot clean up, so its socket lies in our folder."""
        runtime = self.folder / f"{name}.run"
        runtime.mkdir(mode=0o700)
        path = self.folder / f"{name}.toml"
        path.write_text(f'threads_per_executor = 1\nruntime_dir = "{runtime}"\n', encoding="utf-8")
        return path

    def _wait_ready(self, names: Sequence[str]) -> None:
        registry = open_registry(self.registry)
        give_up_at = time.monotonic() + READY_TIMEOUT_S
        while True:
            ready = set()
            with suppress(RegistryUnavailable):  # the first node has not made it yet
                ready = {found.node_id for found in registry.read() if found.readiness is Readiness.READY}
            if ready.issuperset(names):
                return
            for node in self.nodes:
                if node.process.poll() is not None:
                    raise Unavailable(f"node {node.name} ended with code {node.process.returncode}: {_tail(node.log)}")
            if time.monotonic() > give_up_at:
                late = sorted(set(names) - ready)
                tail = _tail(self.folder / f"{late[0]}.log")
                raise Unavailable(f"{', '.join(late)} not ready after {READY_TIMEOUT_S:.0f} s: {tail}")
            time.sleep(_POLL_S)

    def kill_executor(self, rng: random.Random) -> str:
        """SIGKILLs one executor of a random live node; gives the node's name."""
        nodes = [(node, pids) for node in self.nodes if node.process.poll() is None and (pids := node.executors())]
        node, pids = rng.choice(nodes)
        os.kill(rng.choice(pids), signal.SIGKILL)
        return node.name

    def kill_node(self, name: str) -> None:
        """SIGKILLs one whole node; its executors and its port end with it."""
        next(node for node in self.nodes if node.name == name).process.kill()

    def stop(self) -> None:
        """Drains what still runs, then kills what does not end in time."""
        for node in self.nodes:
            with suppress(ProcessLookupError):
                node.process.terminate()
        give_up_at = time.monotonic() + STOP_TIMEOUT_S
        for node in self.nodes:
            try:
                node.process.wait(max(0.1, give_up_at - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def _tail(log: Path) -> str:
    """The last line of a node's log that complains, since it may go on after that; else its last line."""
    with suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        complaints = [line for line in lines if " WARNING " in line or " ERROR " in line]
        return (complaints or lines or ["it printed nothing"])[-1]
    return "its output cannot be read"
