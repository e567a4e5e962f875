"""The stages and the resume of long tests, tried on a small checkout of its own with a real pytest and a real git."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SETTINGS = '[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["long: x", "hw: x", "leaks(reason): x"]\n'
PASS = "def test_it(): pass\n"
FAIL = "def test_it(): assert 0\n"
LONG = "import pytest\n@pytest.mark.long\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A git checkout with our conftest and no tests yet."""
    for stage in ("", "unit", "contract", "integration"):
        (tmp_path / "tests" / stage).mkdir(exist_ok=True)
        (tmp_path / "tests" / stage / "__init__.py").touch()
    for name in ("conftest.py", "leaks.py", "stages.py"):
        shutil.copy(ROOT / "tests" / name, tmp_path / "tests" / name)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    (tmp_path / ".gitignore").write_text(".cache/\n.pytest_cache/\n__pycache__/\n")
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True, timeout=30)
    return tmp_path


def _pytest(checkout: Path, *words: str) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-v", "tests", *words]
    done = subprocess.run(command, cwd=checkout, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def _write(checkout: Path, **files: str) -> None:
    for name, text in files.items():
        (checkout / "tests" / name.replace("__", "/")).with_suffix(".py").write_text(text)


def test_stages_run_in_order_and_each_has_its_time(checkout: Path) -> None:
    _write(checkout, test_house=PASS, unit__test_a=PASS, contract__test_a=PASS, integration__test_a=PASS)
    code, said = _pytest(checkout)
    order = [said.index(f"tests/{name}") for name in ("test_house", "unit", "contract", "integration")]
    assert code == 0, said
    assert order == sorted(order)
    assert [line.split()[0] for line in said.splitlines() if " s  1 tests" in line] == [
        "house",
        "unit",
        "contract",
        "integration",
    ]
    assert "4 passed" in said.splitlines()[-1]


def test_a_failed_stage_ends_the_run_and_is_named(checkout: Path) -> None:
    _write(checkout, test_house=PASS, unit__test_a=FAIL, unit__test_b=PASS, contract__test_a=PASS)
    code, said = _pytest(checkout)
    assert code == 1
    assert "the stage 'unit' failed" in said
    assert "tests/unit/test_b.py::test_it PASSED" in said  # its own stage is finished
    assert "tests/contract" not in said


def test_a_leak_fails_its_stage(checkout: Path) -> None:
    _write(checkout, unit__test_a="import os\ndef test_it(): os.memfd_create('lost')\n", contract__test_a=PASS)
    code, said = _pytest(checkout)
    assert code == 1
    assert "this test left behind: descriptor" in said
    assert "memfd:lost" in said
    assert "tests/contract" not in said


def test_an_interrupt_ends_with_the_summary(checkout: Path) -> None:
    cut = "import os\ndef test_it():\n    os.memfd_create('lost')\n    raise KeyboardInterrupt\n"
    _write(checkout, unit__test_a=PASS, unit__test_b=cut, contract__test_a=PASS)
    code, said = _pytest(checkout)
    assert code == 2, said
    assert "KeyboardInterrupt" in said
    assert "1 passed" in said.splitlines()[-2] + said.splitlines()[-1], said
    assert "left behind" not in said, "what a test was at is no leak"
    assert "tests/contract" not in said


def test_long_files_that_finished_are_not_run_again(checkout: Path) -> None:
    words = ("-m", "long", "--resume")
    _write(checkout, integration__test_a=LONG + PASS, integration__test_b=LONG + FAIL)
    code, said = _pytest(checkout, *words)
    assert code == 1
    assert "1 failed, 1 passed" in said
    code, said = _pytest(checkout, *words)
    assert code == 1, "a failed file is run again"
    assert "finished earlier: tests/integration/test_a.py" in said
    assert "test_a.py::test_it" not in said
    _write(checkout, integration__test_b=LONG + PASS)
    code, said = _pytest(checkout, *words)
    assert code == 0, said
    assert "2 passed" in said, "another tree: what finished before may fail now"
    code, said = _pytest(checkout, *words)
    assert code == 0, "nothing left to do is a success"
    assert "::test_it" not in said
