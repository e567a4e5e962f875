"""What a copier does with the memory that it is told of, over files."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest

from frontdoor.copier import DONE, FORGET_MAX, NO_SOURCE, NO_TARGET, PIECE_BYTES, Mapped, words

if TYPE_CHECKING:
    from pathlib import Path

NBYTES = 2 * PIECE_BYTES + 1000


def opened(path: Path, content: bytes) -> int:
    path.write_bytes(content)
    return os.open(path, os.O_RDWR)


@pytest.mark.parametrize("nbytes", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, NBYTES - 100])
def test_bytes_are_where_they_were_asked_for_and_nowhere_else(tmp_path: Path, nbytes: int) -> None:
    content = bytes(number % 251 for number in range(NBYTES))
    mapped = Mapped()
    mapped.map(1, NBYTES, 0, opened(tmp_path / "source", content))
    mapped.map(2, NBYTES, 0, opened(tmp_path / "target", bytes(NBYTES)))
    assert mapped.copy(1, 3, 2, 77, nbytes) == DONE
    assert (tmp_path / "target").read_bytes() == bytes(77) + content[3 : 3 + nbytes] + bytes(NBYTES - 77 - nbytes)
    for number in (1, 2, 2):
        mapped.forget(number)
    assert mapped.copy(1, 0, 2, 0, 1) == NO_SOURCE


def test_a_part_of_a_file_is_mapped(tmp_path: Path) -> None:
    mapped, begin = Mapped(), 2 * mmap.ALLOCATIONGRANULARITY
    mapped.map(1, 5, begin, opened(tmp_path / "source", bytes(begin) + b"words"))
    mapped.map(2, 9, 0, opened(tmp_path / "target", bytes(9)))
    assert mapped.copy(1, 1, 2, 3, 4) == DONE
    assert (tmp_path / "target").read_bytes() == bytes(3) + b"ords" + bytes(2)
    mapped.map(3, 6, begin, opened(tmp_path / "source", bytes(begin) + b"words"))
    assert mapped.copy(3, 0, 2, 0, 1) == NO_SOURCE, "it does not lie in the file"


def test_what_is_too_short_or_no_file_is_not_mapped_and_its_descriptor_closed(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - names alone
    mapped = Mapped()
    mapped.map(1, NBYTES, 0, opened(tmp_path / "short", b"short"))
    reading, writing = os.pipe()
    mapped.map(2, NBYTES, 0, reading)
    os.close(writing)
    mapped.map(3, NBYTES, 0, opened(tmp_path / "whole", bytes(NBYTES)))
    assert mapped.copy(1, 0, 3, 0, 1) == NO_SOURCE
    assert mapped.copy(3, 0, 2, 0, 1) == NO_TARGET
    assert (tmp_path / "short").read_bytes() == b"short"
    mapped.forget(3)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208 - names alone


def test_messages_are_words_that_fit() -> None:
    assert words(1, 2) == (1).to_bytes(8, "little") + (2).to_bytes(8, "little")
    assert len(words(3, *range(FORGET_MAX))) <= 4096
