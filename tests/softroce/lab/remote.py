"""Runs tests inside guests as if they ran here: one lab at a time, one pytest inside it, one report for each phase.

A test with the mark `guests(1)` or `guests(2)` is collected here and inside the guest; here only its node id is used.
The guest's reports are handed to pytest as they come, so failures, times and counts look like everybody else's.
Read `tests/softroce/lab/worker.py` for the other side.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.softroce.lab import compiled, native
from tests.softroce.lab.asked import Asked
from tests.softroce.lab.cache import LabError, OutsideError
from tests.softroce.lab.lab import Lab, unavailable
from tests.softroce.lab.own import OwnMachine, own_device
from tests.softroce.lab.packages import BOOKWORM, SUITES

if TYPE_CHECKING:
    from tests.softroce.lab.guest import Process

COLLECT_S = 120.0
MORE_S = 30.0
"""What a test may take beyond its own limit, which the guest keeps: its fixtures' ends, and the report."""
LIMIT = pytest.StashKey[float]()
LAST_WORDS = 60
BUDGET_S = 300.0
"""Of `make test`: they take about 150 s on two quiet cores without KVM, and two minutes more where the guests' image is
made first; the whole of it must end in time."""
REQUIRED = "OVERSPILL_LAB_REQUIRED"


NATIVE = "native"


class Stage(NamedTuple):
    """What a test wants: how many guests, 0 when it runs here, and of which kind: a release of Debian under QEMU, or
    `native` for a user-mode kernel; and whether with the compiled package."""

    nodes: int
    kind: str
    compiled: bool = False


def stage_of(item: pytest.Item) -> Stage:
    """The stage of a test, by its mark `guests(nodes, kind, "compiled")`."""
    mark = item.get_closest_marker("guests")
    if mark is None:
        return Stage(0, "")
    kind = str(mark.args[1]) if len(mark.args) > 1 else BOOKWORM.name
    return Stage(int(mark.args[0]), kind, "compiled" in mark.args[2:])


def limit_of(item: pytest.Item) -> float:
    """The seconds that pytest-timeout would give it."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        return float(mark.args[0] if mark.args else mark.kwargs["timeout"])
    return float(item.config.getoption("--timeout") or item.config.getini("timeout"))


class Remote:
    """The tests of one session that run in guests."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._items = items
        self._lab: Lab | OwnMachine | None = None
        self._asked: Asked | None = None
        self._worker: Process | None = None
        self._stage = Stage(0, "")
        self._said: list[str] = []
        self._refused: dict[Stage, str] = {}
        self._broken: dict[Stage, str] = {}
        self._spent_s = 0.0

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Whether it ran; if not, it got a mark that lets it be skipped."""
        stage = stage_of(item)
        began_s = time.monotonic()
        problem = reason = ""
        if self._spent_s > BUDGET_S and item.get_closest_marker("long") is None:
            reason = f"the guests of this machine are so slow that {BUDGET_S:.0f} s did not do for all of their tests"
        else:
            problem = self._ready(stage)
            reason = self._refused.get(stage, "")
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
            if nextitem is None or stage_of(nextitem) != stage:
                self.close()
            return False
        same = nextitem is not None and stage_of(nextitem) == stage
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        problem = problem or self._order(item, nextitem if same else None)
        if problem:
            _fail(item, problem)
            self._end_worker()
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not same:
            self.close()
        self._spent_s += time.monotonic() - began_s
        return True

    def close(self) -> None:
        """Ends the lab, if there is one."""
        if self._lab is not None:
            self._end_worker()
            self._lab.close()
        self._lab = self._asked = None

    def _ready(self, stage: Stage) -> str:
        """Makes lab and worker if need be; a sentence when they cannot be had."""
        if stage in self._refused or stage in self._broken:
            return self._broken.get(stage, "")
        if self._lab is not None and self._stage != stage:
            self.close()
        try:
            if self._lab is None:
                self._stage, self._lab = stage, _lab(stage)
                self._asked = Asked(self._lab, compiled.environment(compiled=stage.compiled))
            if self._worker is None:
                self._start_worker()
        except (OutsideError, OSError, subprocess.SubprocessError) as error:
            self._refuse(stage, str(error))
        except LabError as error:
            if self._lab is not None:
                self.close()
                self._broken[stage] = f"the soft-RoCE lab failed: {error}"
                return self._broken[stage]
            self._refuse(stage, str(error))
        return ""

    def _refuse(self, stage: Stage, why: str) -> None:
        """A machine that cannot boot guests skips their tests, unless it is told that it must not."""
        if os.environ.get(REQUIRED):
            raise pytest.UsageError(f"{REQUIRED} is set, and there is no soft-RoCE lab: {why}")
        self._refused[stage] = f"no soft-RoCE lab: {why}"

    def _start_worker(self) -> None:
        assert self._lab is not None
        files = sorted({item.nodeid.split("::")[0] for item in self._items if stage_of(item) == self._stage})
        limit = max(limit_of(item) if LIMIT not in item.stash else item.stash[LIMIT] for item in self._items)
        words = [*files, "--timeout", str(limit)]
        env = compiled.environment(compiled=self._stage.compiled)
        self._worker = self._lab.guests[0].start(words, "tests.softroce.lab.worker", env)
        said = self._next(time.monotonic() + COLLECT_S)
        if said is None or "collected" not in said:
            problem = (said or {}).get("broken") or f"it said nothing: {self._last_words()}"
            self._end_worker()
            raise LabError(f"pytest could not collect the tests inside the guest: {problem}")

    def _order(self, item: pytest.Item, nextitem: pytest.Item | None) -> str:
        """Lets the guest run it and hands its reports on; a sentence when it did not come to an end."""
        assert self._worker is not None
        assert self._asked is not None
        self._said.clear()
        end_s = time.monotonic() + item.stash[LIMIT] + MORE_S
        try:
            self._tell({"run": item.nodeid, "next": nextitem.nodeid if nextitem else None})
            while (said := self._next(end_s)) is not None:
                if "done" in said:
                    self._asked.mend()
                    return ""
                if "ask" in said:
                    self._tell(self._asked.answer(said["ask"], said["words"]))
                if "report" in said:
                    config = item.config
                    report = config.hook.pytest_report_from_serializable(config=config, data=said["report"])
                    if report.failed:
                        report.sections.append(("the guests' processes", "\n".join(self._notes())))
                    item.ihook.pytest_runtest_logreport(report=report)
        except LabError as error:
            return str(error)
        return f"the test's process in the guest {_ended(self._worker)}: {self._last_words()}"

    def _tell(self, words: dict[str, Any]) -> None:
        assert self._worker is not None
        self._worker.write(json.dumps(words) + "\n")

    def _next(self, end_s: float) -> dict[str, Any] | None:
        """The worker's next word; None when it ended or the time is up."""
        assert self._worker is not None
        while self._worker.code is None:
            line = self._worker.line(max(0.0, end_s - time.monotonic()))
            if line is None:
                return None
            if line.stream == "out":
                return dict(json.loads(line.text))
            if line.stream == "err":
                self._said.append(line.text)
        return None

    def _last_words(self) -> str:
        return "\n".join([*self._said[-LAST_WORDS:], *self._notes()])

    def _notes(self) -> list[str]:
        return self._asked.notes[-LAST_WORDS:] if self._asked else []

    def _end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is None or not worker.guest.alive():
            return
        try:
            with contextlib.suppress(LabError):
                worker.end_input()  # refused when it has ended
            end_s = time.monotonic() + 10.0
            while (line := worker.line(max(0.0, end_s - time.monotonic()))) is not None and line.stream != "exit":
                pass
            with contextlib.suppress(LabError):
                worker.signal(9)  # refused when it has ended, which is what is hoped for
            if self._asked is not None:
                self._asked.end_processes()
                self._asked.mend()
        except LabError:
            lab = self._lab
            self._lab = None
            if lab is not None:
                lab.close()


def _lab(stage: Stage) -> Lab | OwnMachine:
    """This machine where its own device will do, else guests. Raises LabError."""
    if (stage.nodes, stage.kind) == (1, BOOKWORM.name) and (device := own_device()):
        return OwnMachine(device)
    if stage.compiled and (reason := compiled.unavailable()):
        raise OutsideError(reason)
    suite = SUITES.get(stage.kind)
    if reason := native.unavailable() if suite is None else unavailable(suite):
        raise OutsideError(reason)
    return native.NativeLab(stage.nodes) if suite is None else Lab(stage.nodes, suite)


def _ended(worker: Process) -> str:
    """What became of a worker that says no more."""
    if worker.code is None:
        return "was silent"
    return f"ended by signal {-worker.code}" if worker.code < 0 else f"ended with exit code {worker.code}"


def _fail(item: pytest.Item, problem: str) -> None:
    report = pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords={item.name: 1},
        outcome="failed",
        longrepr=problem,
        when="call",
    )
    item.ihook.pytest_runtest_logreport(report=report)
