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
    """Sections of figures by name; each test file owns one section, and a later run replaces it."""

    def __init__(self) -> None:
        self.sections: dict[str, dict[str, object]] = {}
        self.device = "unknown"

    def add(self, section: str, **figures: object) -> None:
        self.sections.setdefault(section, {"date": dt.datetime.now(dt.UTC).date().isoformat()})
        self.sections[section].update(figures)

    def write(self) -> Path:
        FOLDER.mkdir(parents=True, exist_ok=True)
        path = FOLDER / f"{self.device.lower().replace(' ', '-')}.json"
        known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        sections = {name: {**_kept(known, name), **figures} for name, figures in self.sections.items()}
        known |= {"device": self.device, "python": platform.python_version(), "cores": os.cpu_count(), **sections}
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
    """Writes the report and prints it, where a test has filled it."""
    filled = config.stash.get(_REPORT, None)
    if filled is not None and filled.sections:
        path = filled.write()
        terminalreporter.section(str(path))
        terminalreporter.write_line(path.read_text(encoding="utf-8"))
