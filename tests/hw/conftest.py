"""What the tests on a GPU machine share: the report they fill, printed as JSON and kept under docs/hw/."""

from __future__ import annotations

import datetime as dt
import json
import os
import platform
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("OVERSPILL_HW_REPORTS") or Path(__file__).parents[2] / "docs" / "hw")


class Report:  # mutable: filled test by test
    """Sections of figures by name, for each device; each test file owns one section, and a later run replaces it."""

    def __init__(self) -> None:
        self.device = "unknown"
        """What the next figures are about: a file of its own, which other tests of the same run do not turn to."""
        self._sections: dict[str, dict[str, dict[str, object]]] = {}

    @property
    def filled(self) -> bool:
        return bool(self._sections)

    def add(self, section: str, **figures: object) -> None:
        today = dt.datetime.now(dt.UTC).date().isoformat()
        self._sections.setdefault(self.device, {}).setdefault(section, {"date": today}).update(figures)

    def write(self) -> list[Path]:
        FOLDER.mkdir(parents=True, exist_ok=True)
        return [self._write(device, sections) for device, sections in self._sections.items()]

    def _write(self, device: str, found: dict[str, dict[str, object]]) -> Path:
        path = FOLDER / f"{device.lower().replace(' ', '-')}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        sections = {name: {**_kept(known, name), **figures} for name, figures in found.items()}
        known |= {"device": device, "python": platform.python_version(), "cores": os.cpu_count(), **sections}
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return path


def _kept(known: dict[str, object], name: str) -> dict[str, object]:
    """Of a section that runs may fill in parts, what an earlier run has found."""
    before = known.get(name)
    return before if name.startswith("faults_") and isinstance(before, dict) else {}


_REPORT = pytest.StashKey[Report]()


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    return pytestconfig.stash.setdefault(_REPORT, Report())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Writes the reports and prints them, where a test has filled them."""
    report = config.stash.get(_REPORT, None)
    if report is not None and report.filled:
        for path in report.write():
            terminalreporter.section(str(path))
            terminalreporter.write_line(path.read_text(encoding="utf-8"))
