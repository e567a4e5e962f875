"""`overspill model`: what it does to a node, what it prints, and how it ends."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tests.integration.nodes import CONFIG, IDEMPOTENT, OK, ROOT, client_of, running_node, write_model

if TYPE_CHECKING:
    from pathlib import Path

DOUBLE = """
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"] * 2
"""


def test_load_unload_and_statistics(tmp_path: Path) -> None:
    models, registry = tmp_path / "models", f"dir:{tmp_path}/registry"
    write_model(models, "double", DOUBLE, CONFIG + IDEMPOTENT)
    write_model(models, "broken", "1 / 0", CONFIG)

    def ask(*words: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "overspill", "model", *words, "--registry", registry]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
        return ended.returncode, ended.stdout + ended.stderr

    words = ("--model-control", "explicit", "--registry", registry, "--node-id", "n1")
    with running_node(tmp_path, models, *words) as node, client_of(node) as client:
        assert ask("load", "double") == (0, "n1: double 1 is READY\n")
        assert client.call("double", OK, 3) == [0, 6]
        code, told = ask("stats", "double", "--node", "n1")
        assert code == 0
        assert told.startswith("n1: double 1: 1 requests of 1 items in 1 runs (1.0 items a run), 0 pending;")
        code, told = ask("load", "broken")
        assert code == 1
        assert "ZeroDivisionError" in told
        assert ask("unload", "double") == (0, "n1: double is unloaded\n")
        code, told = ask("load", "double", "--node", "n2")
        assert code == 2
        assert "there are n1" in told
        assert ask("load", "double", "--config", str(tmp_path / "none.json"))[0] == 2
