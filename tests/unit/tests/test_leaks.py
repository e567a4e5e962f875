"""The leak check sees each kind of leak, names it, and forgives what ends within its grace."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

from tests import leaks

if TYPE_CHECKING:
    from pathlib import Path


def test_nothing_leaked_is_nothing_said() -> None:
    before = leaks.take()
    assert leaks.compare(before, leaks.take()) == []


def test_an_open_descriptor_is_named() -> None:
    before = leaks.take()
    read, write = os.pipe()
    found = leaks.compare(before, leaks.take())
    os.close(read)
    os.close(write)
    assert [line.split(":")[0] for line in found] == [f"descriptor {read} is open", f"descriptor {write} is open"]
    assert "pipe" in found[0]


def test_a_reused_number_is_still_seen() -> None:
    first, write = os.pipe()
    before = leaks.take()
    os.close(first)
    other = os.memfd_create("leak")
    found = leaks.compare(before, leaks.take())
    os.close(other)
    os.close(write)
    assert other == first
    assert len(found) == 1
    assert "memfd:leak" in found[0]


def test_a_thread_is_named_and_forgiven_once_it_ends() -> None:
    before = leaks.take()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(5,), name="lingerer")
    thread.start()
    assert leaks.wait_none(before, grace_s=0.0) == ["thread 'lingerer' runs"]
    stop.set()
    assert leaks.wait_none(before) == []
    thread.join(5)


def test_a_pending_task_is_named() -> None:
    async def sleeper() -> None:
        await asyncio.sleep(60)

    async def leave_one() -> tuple[list[str], list[str]]:
        before = leaks.take()
        task = asyncio.create_task(sleeper())
        await asyncio.sleep(0)
        during = leaks.compare(before, leaks.take())
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return during, leaks.compare(before, leaks.take())

    during, after = asyncio.run(leave_one())
    assert len(during) == 1
    assert "sleeper" in during[0]
    assert after == []


def test_a_child_is_named_alive_and_dead() -> None:
    before = leaks.take()
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()  # so it has begun: a process has no command line for a moment
    child.stdout.close()
    alive = [line for line in leaks.compare(before, leaks.take()) if line.startswith("child")]
    assert child.stdin is not None
    child.stdin.close()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still to be waited for
    dead = leaks.compare(before, leaks.take())
    child.wait(10)
    assert len(alive) == 1
    assert "input()" in alive[0]
    assert dead == [f"child process {child.pid} is there: dead, and nobody waited for it"]
    assert leaks.compare(before, leaks.take()) == []


def test_a_left_file_is_named(tmp_path: Path) -> None:
    before = leaks.take((tmp_path,))
    (tmp_path / "node.sock").touch()
    assert leaks.compare(before, leaks.take((tmp_path,))) == [f"file {tmp_path / 'node.sock'} lies there"]


def test_the_check_is_cheap() -> None:
    """Two snapshots a test, under a millisecond together. The best of many, so that a busy machine changes nothing."""
    best_s = float("inf")
    for _ in range(50):
        start_s = time.perf_counter()
        leaks.take()
        best_s = min(best_s, time.perf_counter() - start_s)
    assert best_s < 0.005
