"""Overspill beside PyPI's `fabric`, in real environments made by a real pip: one sentence, and a command that mends it.

It needs a package index and is skipped where none answers. The guard is `overspill/_guard.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
INDEX_S = 60.0
"""Fetching one small wheel takes 1 to 3 s; an index that needs a minute is no index."""
STEP_S = 120.0

pytestmark = pytest.mark.timeout(300)


@dataclass(frozen=True, slots=True)
class Kit:
    """What the environments are made from."""

    checkout: Path
    ours: Path
    foreign: Path


def _run(*words: str | Path, timeout_s: float = STEP_S, path: str = "") -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "PIP_REQUIRE_VIRTUALENV"}}
    if path:
        env["PYTHONPATH"] = path
    command = [str(word) for word in words]
    # Away from the checkout: Python would find our rooms in the working folder.
    cwd = env.get("TMPDIR", "/")
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=cwd, env=env, check=False)


def _pip(*words: str | Path, timeout_s: float = STEP_S) -> subprocess.CompletedProcess[str]:
    return _run(sys.executable, "-m", "pip", "--disable-pip-version-check", *words, timeout_s=timeout_s)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> Kit:
    """A copy of the checkout, a wheel of it, and PyPI's wheel of fabric."""
    base = tmp_path_factory.mktemp("kit")
    try:
        got = _pip(
            "download", "--quiet", "--no-deps", "--retries", "0", "-d", base / "foreign", "fabric", timeout_s=INDEX_S
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"needs a package index: none answered within {INDEX_S:.0f} s")
    if got.returncode != 0:
        pytest.skip(f"needs a package index: {(got.stderr.strip().splitlines() or ['pip failed'])[-1]}")
    checkout = base / "checkout"
    ignore = shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__", "tests", "docs")
    shutil.copytree(ROOT, checkout, ignore=ignore)
    built = _pip("wheel", "--quiet", "--no-deps", "-w", base / "ours", checkout)
    assert built.returncode == 0, built.stderr
    return Kit(checkout, next((base / "ours").glob("*.whl")), next((base / "foreign").glob("fabric-*.whl")))


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an empty environment."""
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    return tmp_path / "env" / "bin" / "python"


def _install(python: Path, *words: str | Path) -> None:
    done = _pip("--python", python, "install", "--quiet", "--no-deps", *words)
    assert done.returncode == 0, done.stderr


def _refusal(python: Path, path: str = "") -> str:
    """The one sentence with which the command refuses; `import overspill` must end with the same."""
    by_import = _run(python, "-c", "import overspill", path=path)
    by_command = _run(python.parent / "overspill", "models", path=path)
    assert by_import.returncode == 1, by_import.stdout
    assert by_command.returncode == 1, by_command.stdout
    said = by_command.stderr.strip()
    assert said.count("\n") == 0, said
    sentence = said.removeprefix("overspill: ")
    assert by_import.stderr.strip().splitlines()[-1] == f"ImportError: {sentence}"
    return sentence


def _assert_imports(python: Path) -> None:
    done = _run(python, "-c", "import overspill; print(overspill.__all__)")
    assert done.returncode == 0, done.stderr


def test_editable_install_beside_foreign_fabric(kit: Kit, python: Path) -> None:
    _install(python, "-e", kit.checkout)
    _assert_imports(python)
    _install(python, kit.foreign)
    said = _refusal(python)
    site = python.parent.parent / "lib"
    assert f"a foreign package 'fabric' stands before it at {site}" in said
    assert "`pip uninstall fabric`" in said
    gone = _pip("--python", python, "uninstall", "--quiet", "--yes", "fabric")  # what the sentence says
    assert gone.returncode == 0, gone.stderr
    _assert_imports(python)


def test_foreign_fabric_installed_over_the_wheel(kit: Kit, python: Path) -> None:
    _install(python, kit.ours)
    _assert_imports(python)
    _install(python, kit.foreign)
    assert "`pip uninstall fabric && pip install --force-reinstall --no-deps overspill`" in _refusal(python)
    gone = _pip("--python", python, "uninstall", "--quiet", "--yes", "fabric")
    assert gone.returncode == 0, gone.stderr
    assert "`pip install --force-reinstall --no-deps overspill`" in _refusal(python)  # half of the mending
    _install(python, "--force-reinstall", kit.ours)
    _assert_imports(python)


def test_wheel_installed_over_foreign_fabric(kit: Kit, python: Path) -> None:
    _install(python, kit.foreign)
    _install(python, kit.ours)
    assert "`pip uninstall fabric && " in _refusal(python)


def test_foreign_folder_first_on_the_path(kit: Kit, python: Path, tmp_path: Path) -> None:
    _install(python, kit.ours)
    foreign = tmp_path / "scripts" / "fabric"
    foreign.mkdir(parents=True)
    (foreign / "__init__.py").touch()
    said = _refusal(python, path=str(foreign.parent))
    assert f"take {foreign} off PYTHONPATH or rename it" in said
