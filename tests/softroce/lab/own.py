"""This machine in the place of a single guest, where it has an RDMA device of its own, or can make a soft one.

A real card, or soft-RoCE at the CPU's own speed, is worth more than an emulated guest; two hosts are still two guests.
A soft device gets a network of its own (a dummy device), which goes again at the end: nothing else of the machine's
network is touched. Faults of a cable cannot be had here. Read `tests/softroce/lab/lab.py` for guests.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import queue
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any

from tests.softroce.lab.agent import RDMA_NET
from tests.softroce.lab.cache import LabError
from tests.softroce.lab.guest import LINES_MAX, Line, Process

_ROOT = Path(__file__).resolve().parents[3]
_DEVICES = Path("/sys/class/infiniband")
_NETDEV, _SOFT = "osp-dummy", "osp-rxe"
_STOP_S = 10.0


def own_device() -> str:
    """The active RDMA device that this interpreter can use; empty if there is none."""
    if importlib.util.find_spec("pyverbs") is None:
        return ""
    probe = [sys.executable, "-c", "import pyverbs.device"]
    if subprocess.run(probe, capture_output=True, timeout=60, check=False).returncode:
        return ""
    for port in sorted(_DEVICES.glob("*/ports/*/state")):
        with contextlib.suppress(OSError):
            if "ACTIVE" in port.read_text():
                return port.parts[-4]
    return _make_soft()


def _make_soft() -> str:
    """A soft-RoCE device on a network of its own, where root may and the kernel can."""
    if os.geteuid() != 0 or not all(shutil.which(tool) for tool in ("ip", "rdma", "modprobe")):
        return ""
    steps = (
        f"modprobe rdma_rxe|ip link add {_NETDEV} mtu 4200 type dummy|ip addr add {RDMA_NET}.1/24 dev {_NETDEV}|"
        f"ip link set {_NETDEV} up|rdma link add {_SOFT} type rxe netdev {_NETDEV}"
    )
    for step in steps.split("|"):
        done = subprocess.run(step.split(), capture_output=True, timeout=30, check=False)
        if done.returncode:
            _remove_soft()
            return ""
    return _SOFT


def _remove_soft() -> None:
    for step in (f"rdma link delete {_SOFT}", f"ip link delete {_NETDEV}"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(step.split(), capture_output=True, timeout=30, check=False)


class OwnPlace:
    """This machine, asked as a guest is."""

    node = 0

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._threads: list[threading.Thread] = []

    def alive(self) -> bool:
        """Always."""
        return True

    def ask(self, **command: Any) -> None:
        """Writes to, ends the input of, or signals a process. Raises LabError when it has ended."""
        process = self._running.get(command["pid"])
        if process is None or process.poll() is not None or process.stdin is None:
            raise LabError("that process has ended")
        match command["do"]:
            case "write":
                process.stdin.write(command["text"].encode())
                process.stdin.flush()
            case "end_input":
                process.stdin.close()
            case "signal":
                process.send_signal(command["number"])

    def start(self, words: list[str], module: str = "", env: dict[str, str] | None = None) -> Process:
        """Starts a program, or a Python module, in the checkout."""
        full = [sys.executable, "-m", module, *words] if module else words
        told = {"OVERSPILL_LAB_NODE": "0", "OVERSPILL_LAB_NODES": "1", "OVERSPILL_LAB_PLAIN": "127.0.0", **(env or {})}
        pipe = subprocess.PIPE
        process = subprocess.Popen(full, cwd=_ROOT, env=os.environ | told, stdin=pipe, stdout=pipe, stderr=pipe)
        self._running[process.pid] = process
        lines: queue.Queue[Line] = queue.Queue(LINES_MAX)
        assert process.stdout is not None
        assert process.stderr is not None
        readers = [_reader(process.stdout, "out", lines), _reader(process.stderr, "err", lines)]
        ender = threading.Thread(target=_end, args=(process, readers, lines), name="lab-own-end", daemon=True)
        ender.start()
        self._threads.append(ender)
        return Process(self, process.pid, lines)

    def close(self) -> None:
        """Ends what still runs."""
        for process in self._running.values():
            if process.poll() is None:
                process.kill()
        for thread in self._threads:
            thread.join(_STOP_S)


def _reader(source: IO[bytes], stream: str, lines: queue.Queue[Line]) -> threading.Thread:
    def read() -> None:
        with source:
            for line in source:
                lines.put(Line(stream, line.decode(errors="replace").rstrip("\n")))

    thread = threading.Thread(target=read, name=f"lab-own-{stream}", daemon=True)
    thread.start()
    return thread


def _end(process: subprocess.Popen[bytes], readers: list[threading.Thread], lines: queue.Queue[Line]) -> None:
    for reader in readers:
        reader.join()
    lines.put(Line("exit", str(process.wait())))
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()


class OwnMachine:
    """A lab of one place."""

    nodes = 1

    def __init__(self, device: str) -> None:
        self._device = device
        self.guests = [OwnPlace()]

    def run(self, node: int, words: list[str], timeout_s: float) -> tuple[int, str]:
        """(exit code, all that it wrote) of a command. Raises LabError when it takes too long."""
        try:
            done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LabError(str(error)) from None
        return done.returncode, done.stdout + done.stderr

    def restart(self, node: int) -> None:
        """No test may ask for it."""
        raise LabError("this machine is not for killing")

    def heal(self) -> None:
        """Nothing was broken."""

    def close(self) -> None:
        """Ends the processes, and the soft device if we made it."""
        for place in self.guests:
            place.close()
        if self._device == _SOFT:
            _remove_soft()
