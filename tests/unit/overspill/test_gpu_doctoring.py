"""What doctor says of GPUs: on this machine, and over fake cards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overspill import gpu_doctoring
from overspill.findings import Grade
from workers.cuda.fake import make_cards
from workers.cuda.fake_cards import FakeOverseer

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_classes_are_named_with_their_version() -> None:
    first = next(iter(gpu_doctoring.gpu_findings()))
    assert first.grade is Grade.OK
    assert "version 1: " in first.sentence
    assert "faults.json" in first.sentence


def test_cards_and_their_troubles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cards(str(tmp_path), 3)
    (tmp_path / "card-1" / "recovery").write_text("1")
    monkeypatch.setattr(gpu_doctoring, "open_overseer", lambda kind, where: FakeOverseer(str(tmp_path)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "FAKE-2,FAKE-1")
    found = {finding.subject: finding for finding in gpu_doctoring.gpu_findings()}
    assert "hidden by CUDA_VISIBLE_DEVICES" in found["FAKE-0"].sentence
    assert "hidden" not in found["FAKE-2"].sentence
    assert (found["FAKE-0"].grade, found["FAKE-1"].grade) == (Grade.OK, Grade.BROKEN)
    assert "16.0 GiB of 16.0 GiB free" in found["FAKE-2"].sentence
    (tmp_path / "card-0" / "lost").touch()
    assert any("is lost" in finding.sentence for finding in gpu_doctoring.gpu_findings())
