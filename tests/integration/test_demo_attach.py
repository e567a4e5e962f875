"""`overspill demo --attach` sends its round to nodes that run already, and counts what their ledgers gained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import examples.dispatch.models as shipped
from tests.integration.nodes import running_node

pytestmark = pytest.mark.timeout(300)
MODELS = Path(shipped.__file__).parent


def attach(folder: Path, registry: str, ledger: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "overspill",
        "demo",
        "--attach",
        "--registry",
        registry,
        "--limit-s",
        "0.5",
    ]
    env = {**os.environ, "OVERSPILL_LEDGER_DIR": ledger}
    command += ["--report", str(folder / "report.html")]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=env, check=False)


def test_rounds_go_to_the_running_node_and_earlier_ones_are_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, registry = tmp_path / "ledger", f"dir:{tmp_path / 'registry'}"
    ledger.mkdir()
    monkeypatch.setenv("OVERSPILL_LEDGER_DIR", str(ledger))
    words = ("--registry", registry, "--node-id", "standing", "--devices", "cpu:2")
    with running_node(tmp_path, MODELS, *words) as node:
        for _ in range(2):
            found = attach(tmp_path, registry, ledger=str(ledger))
            assert found.returncode == 0, found.stdout + found.stderr
            assert "sending to standing" in found.stderr
        assert node.process.poll() is None
        assert node.state == "ready"
        lines = [line for path in ledger.glob("*.log") for line in path.read_text().split()]
        assert lines.count("0") == 2, "both rounds number their ledger from 0"
        # The audit reads that folder: what a round did not send, while it ran, is not forgiven.
        (tmp_path / "other").mkdir()
        found = attach(tmp_path, registry, ledger=str(tmp_path / "other"))
        assert found.returncode == 1, found.stdout + found.stderr


def test_what_is_missing_is_one_sentence(tmp_path: Path) -> None:
    for registry, ledger, told in (
        ("", str(tmp_path), "say --registry URL"),
        (f"dir:{tmp_path}", str(tmp_path / "missing"), "OVERSPILL_LEDGER_DIR"),
    ):
        found = attach(tmp_path, registry, ledger=ledger)
        assert found.returncode == 2, found.stderr
        assert told in found.stderr
        assert "Traceback" not in found.stderr
