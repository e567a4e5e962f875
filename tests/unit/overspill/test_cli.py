"""What the command line answers before anything runs: a misspelt option is told with what was meant."""

from __future__ import annotations

import sys

import pytest

from overspill.cli import main


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("node", "--deviecs", "cpu:1"), "`overspill node` does not know --deviecs; did you mean --devices?"),
        (("node", "--modles=here"), "`overspill node` does not know --modles=here; did you mean --models?"),
        (("models", "--registry", "dir:/nowhere", "extra"), "look at `overspill models --help`"),
    ],
)
def test_a_misspelt_option_is_told_with_what_was_meant(
    typed: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    assert told in capsys.readouterr().err


def test_the_demo_says_what_to_install(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == "overspill: the demo needs numba; install it: pip install numba\n"
