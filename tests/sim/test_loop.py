"""The background thread: it runs what it is given, ends in bounded time, and is not there in a forked child."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import closing
from pathlib import Path

import pytest

from fabric.errors import RouterClosed, RouterUsedAfterFork
from fabric.link.loop import LoopThread

ROOT = Path(__file__).resolve().parents[2]


async def answer() -> int:
    await asyncio.sleep(0)
    return 42


async def forever() -> None:
    await asyncio.sleep(3600)


async def stubborn(cancelled: threading.Event) -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        cancelled.set()
        raise


def test_submit_and_timers() -> None:
    with closing(LoopThread()) as loop:
        assert loop.submit(answer()).result(20.0) == 42
        rang, never = threading.Event(), threading.Event()
        loop.call_later(0.01, rang.set)
        loop.call_later(0.01, never.set).cancel()
        assert rang.wait(20.0)
        assert not never.wait(0.05)
        blocked = threading.Event()
        loop.run_blocking(blocked.set)
        assert blocked.wait(20.0)
        assert not loop.in_loop()


def test_close_cancels_and_is_bounded() -> None:
    loop = LoopThread()
    cancelled = threading.Event()
    future = loop.submit(stubborn(cancelled))
    time.sleep(0.05)
    began = time.monotonic()
    loop.close()
    loop.close()
    assert time.monotonic() - began < 10.0
    assert cancelled.is_set()
    with pytest.raises(CancelledError):
        future.result(1.0)
    with pytest.raises(RouterClosed):
        loop.submit(answer())
    loop.call_soon(lambda: None)
    loop.call_later(0.0, lambda: None)
    loop.run_blocking(lambda: None)


def test_a_cancelled_future_cancels_its_coroutine() -> None:
    with closing(LoopThread()) as loop:
        cancelled = threading.Event()
        future = loop.submit(stubborn(cancelled))
        time.sleep(0.05)
        future.cancel()
        assert cancelled.wait(20.0)


def test_a_forked_child_is_told() -> None:
    with closing(LoopThread()) as loop:
        child = os.fork()
        if not child:
            code = 1
            try:
                loop.submit(answer())
            except RouterUsedAfterFork:
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_program_that_just_ends_is_not_kept() -> None:
    code = "from fabric.link.loop import LoopThread; import asyncio; LoopThread().submit(asyncio.sleep(60))"
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == b""
    assert time.monotonic() - began < 40.0
