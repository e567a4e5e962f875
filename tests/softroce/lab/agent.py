"""The guest's own part of the lab: sets up its network and its RDMA device, and starts processes for the host.

It has imported what is slow to import (the snapshot holds it), so a Python module that it starts is a fork, ready in
milliseconds where a new interpreter would take seconds. It speaks lines of JSON with the host over a virtio port, and
decides nothing: no test knowledge lives here. Read `tests/softroce/lab/guest.py` for the other end.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PORT = "lab.talk"
FIRST = "OVERSPILL_LAB_FIRST"
"""Of a process's environment: where it imports from before the checkout."""
RDMA_NET, PLAIN_NET = "10.77.0", "10.78.0"
MTU = 4200
"""Gives RDMA its largest path MTU, 4096, and room for the headers."""


@dataclass(frozen=True, slots=True)
class _Source:
    pid: int
    stream: str


class Agent:
    """The loop."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._selector = selectors.DefaultSelector()
        self._inputs: dict[int, int] = {}
        self._open: dict[int, int] = {}
        self._rest: dict[int, bytes] = {}
        self._selector.register(port, selectors.EVENT_READ, None)

    def tell(self, **words: object) -> None:
        data = json.dumps(words).encode() + b"\n"
        while data:
            data = data[os.write(self._port, data) :]

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    self._obey()
                else:
                    self._relay(key.fd, key.data)

    def _obey(self) -> None:
        self._rest[self._port] = self._rest.get(self._port, b"") + os.read(self._port, 65_536)
        while b"\n" in self._rest[self._port]:
            line, _, self._rest[self._port] = self._rest[self._port].partition(b"\n")
            command = json.loads(line)
            try:
                self.tell(id=command["id"], answer=self._do(command))
            except Exception as error:  # noqa: BLE001 - whatever it is, the host wants to hear it and the guest goes on
                self.tell(id=command["id"], error=f"{type(error).__name__}: {error}")

    def _do(self, command: dict[str, Any]) -> Any:
        match command["do"]:
            case "start":
                return self._start(command["words"], command.get("module", ""), command.get("env", {}))
            case "write":
                os.write(self._inputs[command["pid"]], command["text"].encode())
            case "end_input":
                os.close(self._inputs.pop(command["pid"]))
            case "signal":
                if command["pid"] not in self._open:
                    raise ProcessLookupError("it has ended")
                os.kill(command["pid"], command["number"])
            case "read":
                return Path(command["path"]).read_text()
            case other:
                raise ValueError(f"no such command: {other}")
        return None

    def _start(self, words: list[str], module: str, env: dict[str, str]) -> int:
        pipes = [os.pipe() for _ in range(3)]
        pid = os.fork()
        if pid == 0:
            _become([pipes[0][0], pipes[1][1], pipes[2][1]], words, module, env)
        for mine in (pipes[0][0], pipes[1][1], pipes[2][1]):
            os.close(mine)
        self._inputs[pid], self._open[pid] = pipes[0][1], 2
        for fd, stream in ((pipes[1][0], "out"), (pipes[2][0], "err")):
            self._rest[fd] = b""
            self._selector.register(fd, selectors.EVENT_READ, _Source(pid, stream))
        return pid

    def _relay(self, fd: int, source: _Source) -> None:
        data = os.read(fd, 65_536)
        *lines, self._rest[fd] = (self._rest[fd] + data).split(b"\n")
        if not data and self._rest[fd]:
            lines.append(self._rest[fd])
        for line in lines:
            self.tell(event="line", pid=source.pid, stream=source.stream, text=line.decode(errors="replace"))
        if data:
            return
        self._selector.unregister(fd)
        os.close(fd)
        del self._rest[fd]
        self._open[source.pid] -= 1
        if self._open[source.pid] == 0:
            del self._open[source.pid]
            _, status = os.waitpid(source.pid, 0)
            if source.pid in self._inputs:
                os.close(self._inputs.pop(source.pid))
            self.tell(event="exit", pid=source.pid, code=os.waitstatus_to_exitcode(status))


def _become(fds: list[int], words: list[str], module: str, env: dict[str, str]) -> None:
    """The child's side of a start: never returns."""
    code = 1
    try:
        os.setsid()
        for target, fd in enumerate(fds):
            os.dup2(fd, target)
        os.closerange(3, 1024)
        signal.set_wakeup_fd(-1)
        os.environ.update(env)
        if first := env.get(FIRST):
            _import_from(first)
        if module:
            # The agent's buffered writers belong to its own descriptors.
            sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
            sys.argv = [module, *words]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            code = 0
        else:
            os.execvp(words[0], words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - the child of a fork must not run its parent's code, whatever happens
        traceback.print_exc()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _import_from(first: str) -> None:
    """This process imports from there, and from the checkout what is not there; what was imported of ours is forgotten,
    or it would stay."""
    ours = {path.name for path in Path(first).iterdir()} | {"tests"}
    for name in [name for name in sys.modules if name.partition(".")[0] in ours]:
        del sys.modules[name]
    sys.path.insert(0, first)
    os.environ["PYTHONPATH"] = f"{first}:{os.environ['PYTHONPATH']}"


def _call(*words: str) -> None:
    done = subprocess.run(words, timeout=60, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")


def set_up(node: int) -> None:
    """Two cards with their own networks, an RDMA device on the first. The addresses in the snapshot are equal."""
    for number, (net, card) in enumerate(((RDMA_NET, "eth0"), (PLAIN_NET, "eth1"))):
        _call("/sbin/ip", "link", "set", card, "address", f"52:54:00:12:3{number}:0{node + 1}")
        _call("/sbin/ip", "link", "set", card, "mtu", str(MTU), "up")
        _call("/sbin/ip", "addr", "add", f"{net}.{node + 1}/24", "dev", card)
    socket.sethostname(f"n{node}")
    _call("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")


def _port() -> int:
    """The host's end: a virtio port, or the console that a user-mode kernel was given for it."""
    if line := os.environ.get("OVERSPILL_LAB_TALK"):
        return os.open(line, os.O_RDWR | os.O_NOCTTY)
    for name in Path("/sys/class/virtio-ports").iterdir():
        if (name / "name").read_text().strip() == PORT:
            return os.open(f"/dev/{name.name}", os.O_RDWR)
    raise RuntimeError(f"no virtio port {PORT}")


PRELOADED = (
    "fabric.rdma.channel fabric.rdma.listener fabric.rdma.engine fabric.local.channel fabric.local.listener "
    "fabric.rpc_fallback.channel fabric.rpc_fallback.server fabric.frame fabric.memory.arena tests.contract.world"
)
"""What every test and every node imports: once here, instead of once in each process."""


def preload() -> None:
    """Imports from the checkout; what does not import there is for the tests to say."""
    for name in PRELOADED.split():
        with suppress(Exception):
            importlib.import_module(name)


def main(node: int, nodes: int) -> None:
    """Serves until the guest ends."""
    assert node < nodes
    agent = Agent(_port())
    try:
        set_up(node)
        preload()
    except Exception as error:  # whatever it is, the host waits for a word
        agent.tell(event="failed", text=f"{type(error).__name__}: {error}")
        raise
    agent.tell(event="ready", uptime_s=float(Path("/proc/uptime").read_text().split()[0]))
    agent.run()
