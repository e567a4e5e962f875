"""`make setup` and `make clean` beside a `.venv` that they did not make: used where it fits, and never emptied."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent.parent
PYTHON = '#!/bin/sh\n[ "$1" = -c ] && exit 0\necho "asked: $*"\nexit 9\n'
"""An interpreter that would do, and makes no environment."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder / name)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return folder


def make(checkout: Path, *words: str) -> tuple[int, str]:
    command = ["make", "-C", str(checkout), *words, f"PYTHON={checkout.parent / 'python'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def environment(folder: Path, scripts_of: Path) -> Path:
    """An environment with a file that somebody cares for, whose scripts name another folder."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/python").symlink_to("/bin/true")
    (folder / "bin/pip").write_text(f"#!{scripts_of}/bin/python\n")
    (folder / "kept").write_text("mine")
    return folder


def _link(checkout: Path) -> Path:
    other = environment(checkout.parent / "other/.venv", checkout.parent / "other/.venv")
    (other / ".made-by-setup").touch()  # by the set-up of the other checkout
    (checkout / ".venv").symlink_to(other)
    return other / "kept"


def _link_to_nothing(checkout: Path) -> Path:
    (checkout / ".venv").symlink_to(checkout.parent / "nowhere")
    return checkout / "Makefile"


def _own(checkout: Path) -> Path:
    return environment(checkout / ".venv", Path("/somewhere/else")) / "kept"


def _file(checkout: Path) -> Path:
    (checkout / ".venv").write_text("mine")
    return checkout / ".venv"


@pytest.mark.parametrize("made", [_link, _link_to_nothing, _own, _file])
def test_what_set_up_did_not_make_is_left_alone(checkout: Path, made: Callable[[Path], Path]) -> None:
    kept = made(checkout)
    before = kept.read_text()
    code, said = make(checkout, "setup")
    assert code == 2
    assert "leaves it alone: take it away, or name another place: make VENV=" in said
    code, said = make(checkout, "clean")
    assert code == 0
    assert ".venv is left alone" in said
    assert kept.read_text() == before
    assert (checkout / ".venv").exists() or (checkout / ".venv").is_symlink()


def test_an_environment_of_its_own_from_a_moved_checkout_is_made_again(checkout: Path) -> None:
    kept = environment(checkout / ".venv", Path("/before/it/moved")) / "kept"
    (checkout / ".venv/.made-by-setup").touch()
    code, said = make(checkout, "setup")
    assert code == 2
    assert "asked: -m venv .venv" in said
    assert not kept.exists()
    assert [path.name for path in (checkout / ".venv").iterdir()] == [".made-by-setup"]
    assert make(checkout, "clean")[0] == 0
    assert not (checkout / ".venv").exists()


def test_a_link_to_an_empty_folder_is_used(checkout: Path) -> None:
    (checkout.parent / "disk").mkdir()
    (checkout / ".venv").symlink_to(checkout.parent / "disk")
    assert "asked: -m venv .venv" in make(checkout, "setup")[1]
    assert (checkout / ".venv").is_symlink()
