"""Runs the tests in stages, cheapest first, and goes on with long ones where an earlier run stopped.

A stage begins only if the one before it passed: a broken codec is one failure in `unit`, not two hundred in
`integration`. It orders and counts, and never changes what a test does. Registered by `tests/conftest.py`.
"""

from __future__ import annotations

import gc
import hashlib
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

STAGES = ("house", "unit", "contract", "sim", "integration", "softroce", "drills", "hw")


def stage_of(path: Path, tests: Path) -> str:
    """The stage of a test file: the folder under `tests`, or `house` for those that lie there directly."""
    folder = path.relative_to(tests).parts[0]
    return "house" if folder.endswith(".py") else folder


def tree_key(root: Path) -> str | None:
    """A hash of all that git would see in the checkout, changes not yet committed included; None outside of git."""

    def git(*words: str) -> bytes:
        return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, timeout=60).stdout

    try:
        # Prose changes no result: a finished hour of tests is not thrown away for a sentence in the README.
        parts = [git("ls-files", "--stage", "--", ".", ":!*.md"), git("diff", "--", ".", ":!*.md")]
        for name in git("ls-files", "--others", "--exclude-standard", "-z", "--", ".", ":!*.md").split(b"\0"):
            if name:
                parts += [name, (root / name.decode("utf-8", "surrogateescape")).read_bytes()]
    except (OSError, subprocess.SubprocessError):
        return None
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:20]


class Stages:
    """The pytest plugin."""

    def __init__(self, root: Path, resume: bool) -> None:
        self._root = root
        self._tests = root / "tests"
        key = tree_key(root) if resume else None
        self._done = root / ".cache" / "long" / key if key else None
        self._finished_before: list[str] = []
        self._lines: list[str] = []
        self._started_s = 0.0
        self._ran = 0
        self._failed_in_stage = 0
        self._failed_in_file = 0
        self._passed_in_file = 0

    def _record(self, path: Path) -> Path:
        assert self._done is not None
        return self._done / str(path.relative_to(self._tests)).replace("/", "__")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Sorts by stage; with --resume leaves out the files that an earlier run of this tree finished."""
        order = {name: place for place, name in enumerate(STAGES)}
        items.sort(key=lambda item: order.get(stage_of(item.path, self._tests), len(STAGES)))
        if self._done is None:
            return
        finished = [item for item in items if self._record(item.path).exists()]
        if finished:
            self._finished_before = sorted({str(item.path.relative_to(self._root)) for item in finished})
            config.hook.pytest_deselected(items=finished)
            items[:] = [item for item in items if item not in set(finished)]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, bool, bool]:
        """Notes where a file and a stage begin and end."""
        if self._ran == 0:
            self._started_s = time.monotonic()
        self._ran += 1
        result = yield
        if nextitem is None or nextitem.path != item.path:
            self._end_file(item)
        stage = stage_of(item.path, self._tests)
        if nextitem is None or stage_of(nextitem.path, self._tests) != stage:
            self._end_stage(item.session, stage)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Counts."""
        self._failed_in_file += report.failed
        self._failed_in_stage += report.failed
        self._passed_in_file += report.passed and report.when == "call"

    def _end_file(self, item: pytest.Item) -> None:
        if self._done is not None and self._passed_in_file and not self._failed_in_file:
            self._done.mkdir(parents=True, exist_ok=True)
            self._record(item.path).touch()
        self._failed_in_file = self._passed_in_file = 0

    def _end_stage(self, session: pytest.Session, stage: str) -> None:
        elapsed_s = time.monotonic() - self._started_s
        verdict = f", {self._failed_in_stage} FAILED" if self._failed_in_stage else ""
        self._lines.append(f"{stage:<12} {elapsed_s:7.1f} s  {self._ran} tests{verdict}")
        if self._failed_in_stage:
            session.shouldfail = f"the stage '{stage}' failed, so the stages after it were not begun"
        self._ran = self._failed_in_stage = 0
        # What the stage imported stays: without this each collection of the tests to come walks all of it again.
        gc.collect()
        gc.freeze()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The time of each stage, and what was left out as finished."""
        if self._lines:
            terminalreporter.section("stages")
        for line in self._lines:
            terminalreporter.write_line(line)
        for name in self._finished_before:
            terminalreporter.write_line(f"finished earlier: {name} (`make test-long-clean` forgets it)")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Nothing left to do is a success, not pytest's "no tests ran"."""
        if self._finished_before and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            session.exitstatus = pytest.ExitCode.OK
