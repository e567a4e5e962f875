"""Models handed from a node to its executors in memory: all of them read the same open file, at the same time."""

from __future__ import annotations

import os

import pytest

from workers.parcel import packed, unpack
from workers.repository import ModelSource

SOURCES = tuple(
    ModelSource("times", str(n), f"/models/times/{n}", "config.json", "{}" * n, is_json=True, serial=n) for n in (1, 2)
)


@pytest.mark.parametrize("sources", [SOURCES, ()])
def test_what_was_packed_is_unpacked(sources: tuple[ModelSource, ...]) -> None:
    with packed(sources) as fd:
        assert unpack(os.dup(fd)) == sources


@pytest.mark.parametrize("position", [0, 3, 100_000])
def test_where_another_executor_has_read_to_is_neither_trusted_nor_moved(position: int) -> None:
    with packed(SOURCES) as fd:
        os.lseek(fd, position, os.SEEK_SET)
        assert unpack(os.dup(fd)) == SOURCES
        assert os.lseek(fd, 0, os.SEEK_CUR) == position


def test_the_descriptor_is_closed_with_the_reading() -> None:
    with packed(SOURCES) as fd:
        mine = os.dup(fd)
        unpack(mine)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(mine)
