"""The guard tells our room from a foreign one by where it stands and by what pip wrote down about it.

Rooms here have names of their own, because `find_spec` answers from `sys.modules` for those that the test run imported.
The same with real packages and a real pip is in `tests/integration/test_foreign_package.py`.
"""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

import pytest

from overspill import _guard

if TYPE_CHECKING:
    from pathlib import Path

ROOM = "guarded_room"


def _package(site: Path, text: str = "") -> Path:
    init = site / ROOM / "__init__.py"
    init.parent.mkdir(parents=True)
    init.write_text(text)
    return init


def _installed(site: Path, name: str, init: Path) -> None:
    """What pip leaves behind: RECORD with the file's hash (unpadded base64, as in PEP 376's successor)."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(init.read_bytes()).digest()).decode().rstrip("=")
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text(
        f"{ROOM}/__init__.py,sha256={digest},{init.stat().st_size}\n{folder.name}/RECORD,,\n"
    )


def test_our_room_first_on_the_path_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    _guard.check(tmp_path, (ROOM,))


def test_a_room_that_does_not_stand_here_is_not_asked_for(tmp_path: Path) -> None:
    _guard.check(tmp_path, (ROOM,))


def test_a_foreign_package_before_ours_is_named_with_its_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    _package(ours)
    foreign = _package(theirs, "foreign = True\n")
    _installed(theirs, "some_dist", foreign)
    monkeypatch.syspath_prepend(str(ours))
    monkeypatch.syspath_prepend(str(theirs))
    with pytest.raises(ImportError, match="pip uninstall some_dist") as caught:
        _guard.check(ours, (ROOM,))
    assert str(foreign) in str(caught.value)
    assert (caught.value.name, caught.value.path) == (ROOM, str(foreign))
    assert "\n" not in str(caught.value)


def test_a_foreign_folder_that_no_pip_installed_is_named_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    _package(ours)
    foreign = _package(theirs)
    monkeypatch.syspath_prepend(str(ours))
    monkeypatch.syspath_prepend(str(theirs))
    with pytest.raises(ImportError, match="PYTHONPATH"):
        _guard.check(ours, (ROOM,))
    assert foreign.exists()


def test_a_foreign_module_of_one_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    _package(ours)
    theirs.mkdir()
    (theirs / f"{ROOM}.py").touch()
    monkeypatch.syspath_prepend(str(ours))
    monkeypatch.syspath_prepend(str(theirs))
    with pytest.raises(ImportError, match=f"{ROOM}.py off PYTHONPATH"):
        _guard.check(ours, (ROOM,))


def test_our_room_missing_from_the_path_is_told(tmp_path: Path) -> None:
    _package(tmp_path)
    with pytest.raises(ImportError, match="not on Python's path"):
        _guard.check(tmp_path, (ROOM,))


def test_ours_as_installed_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _installed(tmp_path, "overspill", _package(tmp_path, "ours = True\n"))
    monkeypatch.syspath_prepend(str(tmp_path))
    _guard.check(tmp_path, (ROOM,))


def test_a_foreign_file_installed_over_ours_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = _package(tmp_path, "ours = True\n")
    _installed(tmp_path, "overspill", init)
    init.write_text("foreign = True\n")
    _installed(tmp_path, "some_dist", init)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=r"pip uninstall some_dist && pip install --force-reinstall"):
        _guard.check(tmp_path, (ROOM,))


def test_ours_installed_over_a_foreign_file_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init = _package(tmp_path, "ours = True\n")
    _installed(tmp_path, "overspill", init)
    _installed(tmp_path, ROOM, init)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match=f"pip uninstall {ROOM} && "):
        _guard.check(tmp_path, (ROOM,))


def test_our_file_gone_is_told(tmp_path: Path) -> None:
    """What `pip uninstall` of the foreign one leaves: it took the shared files along."""
    init = _package(tmp_path)
    _installed(tmp_path, "overspill", init)
    init.unlink()
    with pytest.raises(ImportError, match=r"is missing: run `pip install --force-reinstall"):
        _guard.check(tmp_path, (ROOM,))
