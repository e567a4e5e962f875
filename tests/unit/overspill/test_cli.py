"""What the command line answers before anything runs: a misspelt option is told with what was meant."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import ConfigError
from fabric.rdma.facts import read_host
from overspill.cli import main
from overspill.demo.lab import show_in_lab

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("wires", "told"),
    [
        ("rdma,tcp", "names what is no wire; give some of local, rdma, rpc"),
        ("", "names what is no wire"),
        pytest.param(
            "rdma",
            "rdma",
            marks=pytest.mark.skipif(bool(read_host().devices), reason="this host has an RDMA device"),
        ),
    ],
)
def test_wires_that_cannot_be_had_are_told_at_once(
    wires: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", x=np.arange(4))
    files = ("--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz"))
    began_s = time.monotonic()
    assert main(["call", "double", "--registry", "static:127.0.0.1:1", *files, "--wires", wires]) != 0
    assert time.monotonic() - began_s < 20.0, "the call's time is 30 s"
    told_all = capsys.readouterr().err
    assert told in told_all
    assert told_all.count("\n") == 1


def test_the_lab_brings_its_own_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--lab", "--attach", "--registry", "dir:/nowhere"]) == 2
    assert "leave the other options out" in capsys.readouterr().err


def test_the_lab_is_part_of_the_checkout(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run `make demo ARGS=--lab` in a checkout"):
        show_in_lab(1, tmp_path / "report.html", faults=True, checkout=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_models_of_a_fixed_list_claims_no_node_to_be_ready(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--registry", "static:127.0.0.1:1"]) == 0
    told = capsys.readouterr().out
    assert "not asked" in told
    assert "ready" not in told
