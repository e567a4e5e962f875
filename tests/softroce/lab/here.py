"""What a test inside a guest may ask of the host: pull a cable, end a guest, start a process in either guest.

A test imports it freely on the host too: only asking needs a guest. Every request is answered within its own bound.
`tests/softroce/lab/asked.py` is the host's side.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import dataclass
from typing import Any

RDMA_CARD, PLAIN_CARD = 0, 1


class AskError(Exception):
    """The host could not do what was asked: one sentence."""


class Host:
    """The two descriptors to the host."""

    def __init__(self, orders: int, reports: int) -> None:
        self._orders = os.fdopen(orders, "r", encoding="utf-8")
        self._reports = reports
        self._lock = threading.RLock()

    def tell(self, **words: object) -> None:
        """Sends one line."""
        data = json.dumps(words).encode() + b"\n"
        with self._lock:
            while data:
                data = data[os.write(self._reports, data) :]

    def hear(self) -> dict[str, Any] | None:
        """The next line of the host; None when there will be none."""
        line = self._orders.readline()
        return dict(json.loads(line)) if line else None

    def ask(self, what: str, *words: object) -> Any:
        """The host's answer. Raises AskError."""
        with self._lock:
            self.tell(ask=what, words=list(words))
            said = self.hear()
        if said is None:
            raise AskError("the host is gone")
        if "error" in said:
            raise AskError(str(said["error"]))
        return said["answer"]


@dataclass(slots=True)
class _Place:  # mutable: the one connection of this process, set once by the worker
    host: Host | None = None


_PLACE = _Place()


def attach(host: Host) -> None:
    """The worker tells where the host is."""
    _PLACE.host = host


def ask(what: str, *words: object) -> Any:
    """Asks the host of this guest."""
    assert _PLACE.host is not None, "only a test inside a guest can ask"
    return _PLACE.host.ask(what, *words)


def inside() -> bool:
    """Whether this process runs in a guest."""
    return "OVERSPILL_LAB_NODE" in os.environ


def nodes() -> int:
    """How many guests there are."""
    return int(os.environ["OVERSPILL_LAB_NODES"])


def plain_address(node: int) -> str:
    """The address of a guest on the network that stays when RDMA's cable is pulled."""
    net = os.environ.get("OVERSPILL_LAB_PLAIN", "10.78.0")
    return f"{net}.{node + 1}"


def cable(node: int, *, up: bool, card: int = RDMA_CARD) -> None:
    """Pulls or plugs a cable: what is sent meanwhile is lost, and neither end is told."""
    ask("cable", node, card, up)


def run(node: int, *words: str, timeout_s: float = 30.0) -> str:
    """What a command wrote. Raises AskError when it fails."""
    code, text = ask("run", node, list(words), timeout_s)
    if code:
        raise AskError(f"`{' '.join(words)}` ended with {code}: {text}")
    return str(text)


class Process:
    """A process in a guest, by way of the host: it is there whatever happens to the cables."""

    def __init__(self, node: int, module: str, *words: str) -> None:
        self.node = node
        self._handle = ask("start", node, module, list(words))
        self.code: int | None = None

    def line(self, timeout_s: float) -> str:
        """Its next line of standard output; empty when none came in time, or it ended."""
        stream, text = ask("line", self._handle, timeout_s)
        if stream == "exit":
            self.code = int(text)
        return str(text) if stream == "out" else ""

    def said(self, text: str, timeout_s: float) -> bool:
        """Whether it says so in time, on standard output or error."""
        return bool(ask("said", self._handle, text, timeout_s))

    def write(self, text: str) -> None:
        """Writes to its standard input."""
        ask("write", self._handle, text)

    def end_input(self) -> None:
        """Closes its standard input."""
        ask("end_input", self._handle)

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        ask("signal", self._handle, number)

    def alive(self) -> bool:
        """Whether it runs, as far as it is known now."""
        return self.code is None and self.wait(0.0) is None

    def wait(self, timeout_s: float) -> int | None:
        """Its exit code, or None when it still runs then."""
        if self.code is None:
            self.code = ask("wait", self._handle, timeout_s)
        return self.code


def emulated() -> bool:
    """Whether the processor of this guest is emulated, and not this machine's own."""
    return "OVERSPILL_LAB_TALK" not in os.environ
