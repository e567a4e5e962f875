"""The load page of a node on this host: read by several threads through one descriptor, which closing gives back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fabric.errors import NodeLost
from fabric.load_page import FILE, PAGE_BYTES, LoadPage
from fabric.local.page import LocalPage


def opened(path: Path) -> int:
    return sum(link.resolve() == path for link in Path("/proc/self/fd").iterdir() if link.exists())


def test_threads_that_read_first_at_once_open_it_once(tmp_path: Path) -> None:
    memory = bytearray(PAGE_BYTES)
    written = LoadPage(memoryview(memory), 7)
    written.publish(5000, 2)
    (tmp_path / FILE).write_bytes(memory)
    for _ in range(50):
        page, together = LocalPage(str(tmp_path / "node.sock")), Barrier(4)

        def read(page: LocalPage = page, together: Barrier = together) -> int:
            together.wait(5.0)
            return page.read(1, 7).load.outstanding_us

        with ThreadPoolExecutor(4) as pool:
            assert [one.result() for one in [pool.submit(read) for _ in range(4)]] == [5000] * 4
        assert opened(tmp_path / FILE) == 1
        page.close()
        assert opened(tmp_path / FILE) == 0
        with pytest.raises(NodeLost):
            page.raw(1)
