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
        (
            ("call", "double", "--regsitry", "dir:x", "--input", "i", "--output", "o"),
            "`overspill call` does not know --regsitry; did you mean --registry?",
        ),
        (("call", "--inptu=i", "double"), "`overspill call` does not know --inptu=i; did you mean --input?"),
        (("gateway", "--listne", "80"), "`overspill gateway` does not know --listne; did you mean --listen?"),
        (("doctr", "--registry", "dir:x"), "`overspill` has no command doctr; did you mean doctor?"),
        (("--vresion",), "`overspill` does not know --vresion; did you mean --version or --help?"),
    ],
)
def test_a_misspelt_option_is_told_with_what_was_meant(
    typed: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("health", "h:1", "--timeout-s", "nan"), "--timeout-s is nan; give a number from 0.001 to 60"),
        (("health", "h:99999"), "give HOST:PORT, with a port from 1 to 65535"),
        (("gateway", "--registry", "static:h:1", "--listen", "80", "--message-mib-max", "0"), "whole number from 1 to"),
        (("gateway", "--registry", "static:h:1", "--listen", "80", "--http", "h:9"), "--http is 'h:9'; give a port"),
        (("gateway", "--registry", "static:h:1", "--listen", "65535"), "after 65535 there is none; give one for HTTP"),
        (("gateway", "--registry", "static:h:1", "--listen", "80", "--shm", "steal"), "say one of copy, trust, off"),
        (("explain", "id", "--queue", "-1"), "--queue is -1.0; give a number from 0 to"),
        (("simulate", "--processes", "-3"), "--processes is -3; give a whole number from 1 to"),
        (("simulate", "--far-ms", "inf"), "--far-ms is inf; give a number from 0 to"),
        (("simulate", "--loads", "0.5,nan"), "--loads is nan; give a number from 0.01 to 3"),
        (("simulate", "--seeds", "many"), "--seeds is 'many'; give a whole number from 1 to"),
        (("demo", "--limit-s", "99"), "--limit-s is 99.0; give a number from 0.5 to 60"),
        (("demo", "--seed", "-1"), "--seed is -1; give a whole number from 0 to"),
    ],
)
def test_a_number_that_makes_no_sense_is_told_by_its_option(
    typed: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(typed) == 2
    seen = capsys.readouterr()
    assert seen.err.startswith("overspill: ")
    assert seen.err.count("\n") == 1
    assert told in seen.err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (("--tls-cert", "c.pem", "--tls-key", "c.key"), "--tls-cert and --tls-key need --tls-ca"),
        (("--token-file", "{tmp}/none"), "none cannot be read as text; give a file with the token"),
        (("--tls-ca", "{tmp}/none.pem"), "none.pem cannot be read"),
    ],
)
def test_a_call_says_what_is_wrong_with_how_nodes_are_reached(
    more: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "in.npz", x=np.arange(4))
    files = ("--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz"))
    words = (word.format(tmp=tmp_path) for word in more)
    assert main(["call", "double", "--registry", "static:127.0.0.1:1", *files, *words]) == 2
    assert told in capsys.readouterr().err


def test_options_may_be_cut_short(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("models", "--reg", "what")) == 2
    assert "registry 'what' is unknown" in capsys.readouterr().err


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
