"""The local wire's world: the echo node as a process of its own, behind the real listener."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from fabric.deadline import Deadline
from fabric.local.channel import LocalChannel

_ROOT = Path(__file__).resolve().parent.parent.parent
_START_S = 20.0


class EchoProcess:
    """The node of `tests/contract/echo_node.py`, listening on a socket of its own folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="echo-"))
        self.path = str(self.folder / "node.sock")
        self.node_id = "echo"
        self.node_epoch = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None
        return self._process

    def start(self) -> None:
        """A new life, in a new epoch."""
        self.node_epoch += 1
        words = [sys.executable, "-m", "tests.contract.echo_node", self.path, self.node_id, str(self.node_epoch)]
        self._process = subprocess.Popen(words, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._line() == "ready", "the echo node did not start"

    def arm(self, what: str) -> None:
        """Tells it what to do wrong."""
        assert self.process.stdin is not None
        os.write(self.process.stdin.fileno(), f"{what}\n".encode())
        assert self._line() == "armed", "the echo node does not listen"

    def signal(self, number: int) -> None:
        """Sends a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.process.kill()
        self.process.wait(10)

    def end(self) -> None:
        """Ends it in an orderly way, or at all."""
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()

    def close(self) -> None:
        """Ends it and removes its folder."""
        self.end()
        for left in self.folder.iterdir():
            left.unlink()  # a killed node leaves its socket and lock, which the next one cleans up
        self.folder.rmdir()

    def _line(self) -> str:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        if not select.select([fd], [], [], _START_S)[0]:
            return ""
        return os.read(fd, 100).decode().strip()


class LocalWorld:
    """The world."""

    name = "local"
    faults: tuple[str, ...] = ("foreign_id", "outside", "length", "bit", "cut", "oversize", "noise", "magic", "version")
    bytes_budget = 4 << 30

    def __init__(self) -> None:
        self.node = EchoProcess()

    def open_channel(self, timeout_s: float = 5.0) -> LocalChannel:
        node = self.node
        return LocalChannel.open(
            node.path, os.getpid(), self.deadline(timeout_s), expect=(node.node_id, node.node_epoch)
        )

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline.after(timeout_s, time.monotonic())

    def arm(self, what: str) -> None:
        self.node.arm(what)

    def kill(self) -> None:
        self.node.kill()

    def pause(self) -> None:
        self.node.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.node.signal(signal.SIGCONT)

    def restart(self) -> None:
        self.node.end()
        self.node.start()

    def serves(self) -> bool:
        return self.node.process.poll() is None

    def close(self) -> None:
        self.node.close()
