"""A node's folder: nobody sweeps it while its node starts, whatever a dead life of it left there."""

from __future__ import annotations

import fcntl
import os
import threading
from typing import TYPE_CHECKING

import pytest

from workers.runtime import SOCKET, make_folder, sweep

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    return tmp_path


def left_by_a_dead_node(base: Path, identity: str) -> Path:
    """The folder as a killed node leaves it: files, and no lock on them."""
    own = make_folder(identity)
    (own.path / f"{SOCKET}.lock").touch(0o600)
    (own.path / SOCKET).touch()
    own.remove()
    assert own.path.parent == base
    return own.path


def test_what_a_dead_node_left_is_swept(base: Path) -> None:
    folder = left_by_a_dead_node(base, "dead")
    sweep(base)
    assert not folder.exists()


def test_a_folder_is_safe_from_the_moment_that_it_is_made(base: Path) -> None:
    """Its node has not locked its socket yet: another one that starts must not take it for a dead one's."""
    left_by_a_dead_node(base, "again")
    own = make_folder("other")  # sweeps
    again = make_folder("again")
    (again.path / f"{SOCKET}.lock").touch(0o600)
    sweep(base)
    assert (again.path / f"{SOCKET}.lock").exists()
    (again.path / f"{SOCKET}.lock").unlink()
    for one in (own, again):
        one.remove()
        assert not one.path.exists()


def test_a_life_that_ends_leaves_the_folder_to_the_next_one(base: Path) -> None:
    """That one has not listened yet, so the folder is empty."""
    ends, begins = make_folder("again"), make_folder("again")
    assert ends.path == begins.path
    ends.remove()
    assert begins.path.is_dir()
    begins.remove()
    assert list(base.iterdir()) == []


def test_what_was_killed_before_it_listened_is_swept(base: Path) -> None:
    own = make_folder("dead")
    os.close(own._fd)  # killed
    other = base / "overspill-of-somebody"
    other.mkdir()
    sweep(base)
    assert list(base.iterdir()) == [other]


def test_a_folder_whose_socket_is_locked_is_not_swept(base: Path) -> None:
    """As a node of an earlier version holds it, which knows no lock of the folder."""
    folder = left_by_a_dead_node(base, "early")
    fd = os.open(folder / f"{SOCKET}.lock", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    sweep(base)
    assert folder.exists()
    os.close(fd)


def test_many_that_start_at_once_over_dead_ones_all_have_their_folder(base: Path) -> None:
    names = [f"n{number}" for number in range(8)]
    failed: list[str] = []

    def start(name: str) -> None:
        for _ in range(20):
            own = make_folder(name)
            try:
                with (own.path / f"{SOCKET}.lock").open("w"):
                    (own.path / SOCKET).touch()
            except OSError as error:
                failed.append(f"{name}: {error}")
            os.close(own._fd)  # killed

    threads = [threading.Thread(target=start, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert failed == []
    sweep(base)
    assert list(base.iterdir()) == []
