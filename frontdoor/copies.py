"""Copies of tensors between messages, shared memory and the engine's memory: large ones in threads, small ones at once.

A copy in a thread keeps no other client waiting. One that nobody waits for any more is waited for all the same: its
memory is given back afterwards. This module knows no request. Read `frontdoor/door.py` next.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

INLINE_COPY_BYTES = 1 << 20
"""A copy up to this takes 0.15 ms, and to hand it to a thread as long on a busy machine: 1 MiB through shared memory
took 1.07 ms so, and 1.16 to 1.42 by a thread."""
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
        running = asyncio.get_running_loop().run_in_executor(self._threads, work)
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError:
            await asyncio.wait({running})
            running.exception()  # nobody is there to be told
            raise


def move(source: memoryview, target: memoryview) -> None:
    """Copies bytes of the same number."""
    # numpy lets other threads run while it copies; a slice assignment would not.
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
