"""A running guest as the host sees it: one process, and a line to the agent inside.

Every wait has a deadline, and a guest whose process is gone answers everything with one sentence. How it is started and
what can be done to its cables differs: read `tests/softroce/lab/emulated.py` for QEMU's, `native.py` for those of a
user-mode kernel, and `agent.py` for what runs inside.
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from tests.softroce.lab.cache import LabError

if TYPE_CHECKING:
    import socket
    from pathlib import Path

START_S = 120.0
"""A resumed guest is ready within two seconds on a quiet machine; ten with busy neighbours."""
ANSWER_S = 60.0
LEASH = ("setpriv", "--pdeathsig", "KILL", "--")
"""A guest ends with the process that started it, however that one ends."""
LINES_MAX = 100_000


@dataclass(frozen=True, slots=True)
class Line:
    """One line that a process of the guest wrote; `stream` is `out`, `err`, or `exit` with the code as text."""

    stream: str
    text: str


class Place(Protocol):
    """Where processes run: a guest, or this machine in the place of one."""

    node: int

    def alive(self) -> bool:
        """Whether it is there."""

    def ask(self, **command: Any) -> Any:
        """The answer to a command about a process. Raises LabError."""

    def start(self, words: list[str], module: str = "", env: dict[str, str] | None = None) -> Process:
        """Starts one."""


PART_CHARS = 1000
"""What is told at once: a user-mode kernel's console hears nothing more after four kilobytes that nobody has read."""


class Process:
    """A process in a guest."""

    def __init__(self, guest: Place, pid: int, lines: queue.Queue[Line]) -> None:
        self.guest = guest
        self.pid = pid
        self._lines = lines
        self.code: int | None = None

    def line(self, timeout_s: float) -> Line | None:
        """Its next line, or None when none came in time."""
        try:
            line = self._lines.get(timeout=timeout_s)
        except queue.Empty:
            return None
        if line.stream == "exit":
            self.code = int(line.text)
        return line

    def write(self, text: str) -> None:
        """Writes to its standard input."""
        for start in range(0, len(text), PART_CHARS):
            self.guest.ask(do="write", pid=self.pid, text=text[start : start + PART_CHARS])

    def end_input(self) -> None:
        """Closes its standard input."""
        self.guest.ask(do="end_input", pid=self.pid)

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        self.guest.ask(do="signal", pid=self.pid, number=number)


class Closable(Protocol):
    """What a guest holds open."""

    def close(self) -> None:
        """Lets go."""


class Guest:
    """One guest. Not for several threads, but for `ask`."""

    def __init__(self, node: int, folder: Path, words: list[str], fds: tuple[int, ...] = ()) -> None:
        self.node = node
        self._folder = folder
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._streams: dict[int, queue.Queue[Line]] = {}
        self._early: dict[int, list[Line]] = {}
        self._ready: queue.Queue[str] = queue.Queue()
        self._next_id = 0
        self._lock = threading.Lock()
        self._held: list[Closable] = []
        """What ends with it."""
        self._reader: threading.Thread | None = None
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [*LEASH, *words], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, pass_fds=fds
            )

    def _listen(self, talk: socket.socket) -> None:
        """From now on the agent is heard."""
        self._talk = talk
        self._held.append(talk)
        self._reader = threading.Thread(target=self._read, args=(talk,), name=f"lab-guest-{self.node}", daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Until its agent has set it up. Raises LabError with the end of its console."""
        try:
            said = self._ready.get(timeout=START_S)
        except queue.Empty:
            raise LabError(f"guest {self.node} was not ready within {START_S:.0f} s: {self.last_words()}") from None
        if said:
            raise LabError(f"guest {self.node} could not be set up: {said}")

    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process.poll() is None

    def ask(self, **command: Any) -> Any:
        """The agent's answer. Raises LabError when it refuses, the guest is gone, or it takes too long."""
        with self._lock:
            self._next_id += 1
            number = self._next_id
            answers: queue.Queue[dict[str, Any]] = queue.Queue()
            self._answers[number] = answers
            try:
                self._talk.sendall(json.dumps({"id": number, **command}).encode() + b"\n")
            except OSError:
                raise LabError(f"guest {self.node} is gone") from None
        try:
            said = answers.get(timeout=ANSWER_S)
        except queue.Empty:
            raise LabError(f"guest {self.node} did not answer {command.get('do')}: {self.last_words()}") from None
        finally:
            del self._answers[number]
        if "error" in said:
            raise LabError(f"guest {self.node} could not {command.get('do')}: {said['error']}")
        return said["answer"]

    def start(self, words: list[str], module: str = "", env: dict[str, str] | None = None) -> Process:
        """Starts a program, or with `module` a Python module with these arguments."""
        pid = self.ask(do="start", words=words, module=module, env=env or {})
        with self._lock:
            lines: queue.Queue[Line] = queue.Queue(LINES_MAX)
            for line in self._early.pop(pid, []):
                lines.put(line)
            self._streams[pid] = lines
        return Process(self, pid, lines)

    def cable(self, card: int, *, up: bool) -> None:
        """Pulls or plugs the cable of a card: 0 carries RDMA, 1 the rest. What is sent meanwhile is lost."""
        raise LabError(f"nobody can pull cable {card} of guest {self.node}, up or not ({up})")

    def pause(self) -> None:
        """Stops its CPUs."""
        raise LabError(f"guest {self.node} cannot be stopped")

    def resume(self) -> None:
        """Lets them go on."""

    def kill(self) -> None:
        """Ends it as a power cut does."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        for part in self._held:
            part.close()
        self._held.clear()
        if self._reader is not None:
            self._reader.join(10)

    def forget(self) -> None:
        """Removes its sockets and logs."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def last_words(self) -> str:
        """The end of its console and of QEMU's own log."""
        parts = []
        for name in ("console", "log"):
            path = self._folder / name
            if path.exists():
                parts.append(path.read_text(errors="replace").strip()[-800:])
        return " | ".join(part for part in parts if part) or "its console is empty"

    def _read(self, talk: socket.socket) -> None:
        rest = b""
        while True:
            try:
                data = talk.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
        with self._lock:
            for answers in self._answers.values():
                answers.put({"error": "the guest is gone"})
            for stream in self._streams.values():
                stream.put(Line("exit", "-9"))
        self._ready.put("it ended")

    def _hear(self, said: dict[str, Any]) -> None:
        match said.get("event"):
            case "ready":
                self._ready.put("")
            case "failed":
                self._ready.put(str(said["text"]))
            case "line" | "exit":
                gone = said["event"] == "exit"
                line = Line("exit", str(said["code"])) if gone else Line(said["stream"], said["text"])
                with self._lock:
                    if (stream := self._streams.get(said["pid"])) is not None:
                        stream.put(line)
                    else:  # faster than the answer to `start`
                        self._early.setdefault(said["pid"], []).append(line)
            case None:
                if (answers := self._answers.get(said["id"])) is not None:
                    answers.put(said)
