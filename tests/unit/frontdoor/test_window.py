"""Windows on a client's memory, over files: what is written, where it ends, and what is not mapped."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from frontdoor.window import WINDOW_BYTES_MIN, Window, Windows

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = resource.getpagesize()
NBYTES = WINDOW_BYTES_MIN + 4 * PAGE
WORDS = bytes(number % 251 for number in range(3 * PAGE + 5))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "key").write_bytes(bytes(NBYTES))
    return tmp_path / "key"


@pytest.fixture
def fd(file: Path) -> Iterator[int]:
    fd = os.open(file, os.O_RDWR)
    yield fd
    os.close(fd)


@pytest.fixture
def window(fd: int) -> Iterator[Window]:
    window = Windows().open(fd, NBYTES)
    assert window is not None
    yield window
    window.close()


@pytest.mark.parametrize("at", [0, 1, PAGE - 3, NBYTES - len(WORDS)])
def test_what_is_written_is_there_and_nothing_else(window: Window, file: Path, at: int) -> None:
    assert window.write(at, memoryview(WORDS)) == len(WORDS)
    assert file.read_bytes() == bytes(at) + WORDS + bytes(NBYTES - at - len(WORDS))


def test_it_comes_up_short_where_the_file_was_cut_and_never_makes_it_longer(window: Window, file: Path) -> None:
    os.truncate(file, 2 * PAGE)
    assert window.write(PAGE, memoryview(WORDS)) == PAGE
    assert file.read_bytes() == bytes(PAGE) + WORDS[:PAGE]
    assert window.write(2 * PAGE, memoryview(WORDS)) == 0
    os.truncate(file, 0)
    assert window.write(0, memoryview(WORDS)) == 0
    assert file.stat().st_size == 0
    os.truncate(file, NBYTES)
    assert window.write(0, memoryview(WORDS)) == len(WORDS), "it is whole again"
    assert file.read_bytes()[: len(WORDS)] == WORDS


def test_small_ones_and_what_is_no_file_are_not_mapped(fd: int) -> None:
    windows = Windows()
    assert windows.open(fd, WINDOW_BYTES_MIN) is None
    reading, writing = os.pipe()
    assert windows.open(writing, NBYTES) is None
    os.close(reading)
    os.close(writing)


def test_a_file_that_is_shorter_than_its_window_is_not_made_longer(fd: int, file: Path) -> None:
    os.truncate(file, PAGE)
    window = Windows().open(fd, NBYTES)
    assert window is not None
    assert window.write(NBYTES - len(WORDS), memoryview(WORDS)) == 0
    assert file.stat().st_size == PAGE
    window.close()


def test_what_they_map_together_is_bounded(fd: int) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    windows = Windows(2 * NBYTES - 1)
    first = windows.open(fd, NBYTES)
    assert first is not None
    assert windows.open(fd, NBYTES) is None
    first.close()
    first.close()
    again = windows.open(fd, NBYTES)
    assert again is not None
    assert maps(fd) == 1
    assert windows.open(fd, NBYTES) is None, "closing twice counts once"
    again.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert maps(fd) == 0


def maps(fd: int) -> int:
    path = str(Path(f"/proc/self/fd/{fd}").readlink())
    return sum(path in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_nothing_is_mapped_where_addresses_are_rationed(fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1 << 40, 1 << 40))
    assert Windows().open(fd, NBYTES) is None
