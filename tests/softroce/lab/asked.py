"""The host's side of what tests inside guests ask for. Carries out, bounded in time; decides nothing.

It remembers what was broken and started, so that the lab can be made whole again behind a test that did not.
Read `tests/softroce/lab/lab.py` for the faults themselves.
"""

from __future__ import annotations

import contextlib
import signal
import time
from typing import TYPE_CHECKING, Any

from tests.softroce.lab.cache import LabError
from tests.softroce.lab.guest import Guest

if TYPE_CHECKING:
    from tests.softroce.lab.guest import Line, Process
    from tests.softroce.lab.lab import Lab
    from tests.softroce.lab.own import OwnMachine

NOTES_MAX = 200
LINES_MAX = 10_000


class Asked:
    """For one lab."""

    def __init__(self, lab: Lab | OwnMachine, env: dict[str, str]) -> None:
        self._lab, self._env = lab, env
        self._processes: list[Process] = []
        self._lines: dict[int, list[Line]] = {}
        self.notes: list[str] = []
        """What processes of the guests wrote to their standard error lately."""
        self._broken = False

    def answer(self, what: str, words: list[Any]) -> dict[str, Any]:
        """The answer to one request, or the error, as the guest will read it."""
        try:
            return {"answer": getattr(self, f"_{what}")(*words)}
        except (LabError, IndexError, OSError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def mend(self) -> None:
        """Plugs what a test left unplugged and brings back the guest it killed. Raises LabError when that fails."""
        if self._broken:
            for node in range(self._lab.nodes):
                if not self._lab.guests[node].alive():
                    self._lab.restart(node)
            self._lab.heal()
            self._broken = False

    def end_processes(self) -> None:
        """Ends what the tests of one worker left running."""
        for process in self._processes:
            if process.code is None and process.guest.alive():
                with contextlib.suppress(LabError):
                    process.signal(signal.SIGKILL)
        self._processes.clear()
        self._lines.clear()
        self.notes.clear()

    def _guest(self, node: int) -> Guest:
        each = self._lab.guests[node]
        if not isinstance(each, Guest):
            raise LabError("this machine itself is the guest, and no test may break it")
        return each

    def _cable(self, node: int, card: int, up: bool) -> None:
        self._broken = True
        self._guest(node).cable(card, up=up)

    def _pause(self, node: int) -> None:
        self._broken = True
        self._guest(node).pause()

    def _resume(self, node: int) -> None:
        self._guest(node).resume()

    def _kill(self, node: int) -> None:
        self._broken = True
        self._guest(node).kill()

    def _restart(self, node: int) -> None:
        self._lab.restart(node)

    def _run(self, node: int, words: list[str], timeout_s: float) -> tuple[int, str]:
        return self._lab.run(node, words, timeout_s)

    def _start(self, node: int, module: str, words: list[str]) -> int:
        self._processes.append(self._lab.guests[node].start(words, module, self._env))
        self._lines[len(self._processes) - 1] = []
        return len(self._processes) - 1

    def _write(self, handle: int, text: str) -> None:
        self._processes[handle].write(text)

    def _end_input(self, handle: int) -> None:
        self._processes[handle].end_input()

    def _signal(self, handle: int, number: int) -> None:
        self._processes[handle].signal(number)

    def _line(self, handle: int, timeout_s: float) -> tuple[str, str]:
        """("out", its next line), ("exit", code), or ("", "") when neither came in time."""
        if kept := self._lines[handle]:
            first = kept.pop(0)
            return first.stream, first.text
        line = self._next(handle, timeout_s)
        return (line.stream, line.text) if line else ("", "")

    def _wait(self, handle: int, timeout_s: float) -> int | None:
        process = self._processes[handle]
        end_s = time.monotonic() + timeout_s
        while process.code is None:
            line = self._next(handle, max(0.0, end_s - time.monotonic()))
            if line is None:
                return None
            if len(self._lines[handle]) < LINES_MAX:
                self._lines[handle].append(line)
        return process.code

    def _said(self, handle: int, text: str, timeout_s: float) -> bool:
        """Whether it said so on either stream in time; what it said on the way is not kept."""
        process = self._processes[handle]
        end_s = time.monotonic() + timeout_s
        while process.code is None:
            line = process.line(max(0.0, end_s - time.monotonic()))
            if line is None:
                return False
            if line.stream == "err":
                self.notes = [*self.notes[-NOTES_MAX:], f"guest {process.guest.node}: {line.text}"]
            if text in line.text:
                return True
        return False

    def _next(self, handle: int, timeout_s: float) -> Line | None:
        process = self._processes[handle]
        end_s = time.monotonic() + timeout_s
        while process.code is None:
            line = process.line(max(0.0, end_s - time.monotonic()))
            if line is None or line.stream != "err":
                return line
            self.notes = [*self.notes[-NOTES_MAX:], f"guest {process.guest.node}: {line.text}"]
        return None
