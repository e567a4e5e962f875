"""The rpc wire's world: the echo node and its port, two processes that live and die together."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from fabric.deadline import Deadline
from fabric.memory.arena import Arena
from fabric.rpc_fallback.channel import RpcChannel
from fabric.rpc_fallback.config import RpcConfig
from tests.contract.local_world import EchoProcess

_ROOT = Path(__file__).resolve().parent.parent.parent
_START_S = 20.0
ARENA_BYTES = 256 << 20


class RpcWorld:
    """The world. Each channel has an arena of its own, as the one of a process without a local node has."""

    name = "rpc"
    faults = ("foreign_id", "outside", "length", "bit", "cut", "oversize", "noise", "magic", "version")
    bytes_budget = 2 << 30

    def __init__(self, config: RpcConfig | None = None) -> None:
        self._config = config if config is not None else RpcConfig()
        self.node = EchoProcess()
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._start_port()

    def open_channel(self, timeout_s: float = 5.0) -> RpcChannel:
        expect = (self.node.node_id, self.node.node_epoch)
        address = f"127.0.0.1:{self.port}"
        arena = Arena.create(ARENA_BYTES)
        return RpcChannel.open(address, os.getpid(), self.deadline(timeout_s), self._config, arena, expect)

    def deadline(self, timeout_s: float) -> Deadline:
        return Deadline.after(timeout_s, time.monotonic())

    def arm(self, what: str) -> None:
        self.node.arm(what)

    def kill(self) -> None:
        self.node.kill()
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)

    def pause(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.node.signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self.node.signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        self._end_port()
        self.node.end()
        self.node.start()
        self._start_port()

    def serves(self) -> bool:
        assert self._process is not None
        return self.node.process.poll() is None and self._process.poll() is None

    def close(self) -> None:
        self._end_port()
        self.node.close()

    def _start_port(self) -> None:
        node = self.node
        words = [node.path, node.node_id, str(node.node_epoch), str(self.port)]
        command = [sys.executable, "-m", "tests.contract.rpc_port", *words]
        self._process = subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        fd = self._process.stdout.fileno()
        assert select.select([fd], [], [], _START_S)[0], "the port did not start"
        self.port = int(os.read(fd, 100).decode().strip())

    def _end_port(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        try:
            process.wait(8)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)
        process.stdout.close()
