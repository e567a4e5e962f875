"""Copies of tensors between messages, shared memory and the engine's memory: large ones in threads, small ones at once.

A copy in a thread keeps no other client waiting. One that nobody waits for any more is waited for all the same: its
memory is given back afterwards. This module knows no request. Read `frontdoor/door.py` next.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

INLINE_COPY_BYTES = 1 << 20
"""A copy up to this takes 0.15 ms, and to hand it to a thread as long on a busy machine: 1 MiB through shared memory
took 1.07 ms so, and 1.16 to 1.42 by a thread."""
PAGE_BYTES = 4096
COPY_THREADS = 2
"""Copies share the memory's bandwidth, which two threads of a small machine fill."""


class Copies:  # mutable: owns threads
    """The copies of one front door."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(COPY_THREADS, thread_name_prefix="overspill-copy")

    def close(self) -> None:
        """Lets go of the threads, after what they are at."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    async def run(self, nbytes: int, work: Callable[[], None]) -> None:
        """Runs a copy, in a thread if it is large. A cancelled wait ends when the copy has."""
        if nbytes <= INLINE_COPY_BYTES:
            if nbytes:
                work()
            return
        await self._together(work)

    async def fill(self, view: memoryview, copy: Callable[[int, memoryview], None]) -> None:
        """Runs `copy(at, part)` for all of `view`: a large one's halves at the same time, each in a thread. The system
        needs a millisecond for 8 MiB of shared memory, and two processors read 16 MiB in that time."""
        nbytes = len(view)
        if nbytes <= INLINE_COPY_BYTES:
            if nbytes:
                copy(0, view)
            return
        half = nbytes // 2 // PAGE_BYTES * PAGE_BYTES
        await self._together(partial(copy, 0, view[:half]), partial(copy, half, view[half:]))

    async def _together(self, *works: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        running = (loop.run_in_executor(self._threads, work) for work in works)
        all_of_them = asyncio.gather(*running, return_exceptions=True)
        try:
            failed = [each for each in await asyncio.shield(all_of_them) if each is not None]
        except asyncio.CancelledError:
            await asyncio.wait({all_of_them})
            raise
        finally:
            del all_of_them  # else an error, its traceback and this frame hold each other
        if failed:
            try:
                raise failed[0]
            finally:
                failed.clear()


def move(source: memoryview, target: memoryview) -> None:
    """Copies bytes of the same number."""
    # numpy lets other threads run while it copies; a slice assignment would not.
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
