"""The report of the tests on a GPU machine: each device's figures land in its own file, whoever else fills one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.hw import conftest
from tests.hw.conftest import Report

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_two_devices_did_lands_in_two_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "FOLDER", tmp_path)
    (tmp_path / "card-x2.json").write_text('{"round": {"old": 1}, "kept": {"from": "before"}}')
    report = Report()
    assert not report.filled
    report.device = "Card x2"
    report.add("round", rounds=2)
    report.device = "Card"
    report.add("round", rounds=1)
    report.add("round", pairs=3)
    assert {path.name for path in report.write()} == {"card.json", "card-x2.json"}
    two, one = (json.loads((tmp_path / name).read_text()) for name in ("card-x2.json", "card.json"))
    assert (two["device"], one["device"]) == ("Card x2", "Card")
    assert {key: value for key, value in two["round"].items() if key != "date"} == {"rounds": 2}
    assert {key: value for key, value in one["round"].items() if key != "date"} == {"rounds": 1, "pairs": 3}
    assert two["kept"] == {"from": "before"}


def test_a_section_of_faults_keeps_what_an_earlier_run_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "FOLDER", tmp_path)
    (tmp_path / "card.json").write_text('{"faults_off": {"trap_off": 1, "kill_off": 2}}')
    report = Report()
    report.device = "Card"
    report.add("faults_off", kill_off=3)
    report.write()
    found = json.loads((tmp_path / "card.json").read_text())["faults_off"]
    assert (found["trap_off"], found["kill_off"]) == (1, 3)
