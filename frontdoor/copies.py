"""Copies of tensors between messages, shared memory and the engine's memory: large ones in threads, small ones at once.

A copy in a thread keeps no other client waiting. One that nobody waits for any more is waited for all the same: its
memory is given back afterwards. This module knows no request. Read `frontdoor/door.py` next.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import ResourceExhausted

if TYPE_CHECKING:
    from collections.abc import Callable

INLINE_COPY_BYTES = 1 << 20
"""A copy up to this takes 0.15 ms, and to hand it to a thread as long on a busy machine: 1 MiB through shared memory
took 1.07 ms so, and 1.16 to 1.42 by a thread."""
PAGE_BYTES = 4096
COPY_THREADS = 2
"""Copies share the memory's bandwidth, which two threads of a small machine fill."""


class Copies:  # mutable: owns threads
    """The copies of one front door. Its threads take what is next in a queue; a pool's futures and locks would take
    longer to begin two halves than a tenth of their copy does."""

    def __init__(self) -> None:
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def close(self) -> None:
        """Lets go of the threads, after what they are at."""
        for _ in self._threads:
            self._works.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    async def run(self, nbytes: int, work: Callable[[], None]) -> None:
        """Runs a copy, in a thread if it is large. A cancelled wait ends when the copy has."""
        if nbytes <= INLINE_COPY_BYTES:
            if nbytes:
                work()
            return
        await self._together(work)

    async def halves(self, view: memoryview, copy: Callable[[int, memoryview], None]) -> None:
        """Runs `copy(at, part)` for all of `view`: a large one's halves at the same time, each in a thread. The system
        needs a millisecond for 8 MiB of shared memory, and two processors move 16 MiB in that time."""
        nbytes = len(view)
        if nbytes <= INLINE_COPY_BYTES:
            if nbytes:
                copy(0, view)
            return
        half = nbytes // 2 // PAGE_BYTES * PAGE_BYTES
        await self._together(partial(copy, 0, view[:half]), partial(copy, half, view[half:]))

    async def _together(self, *works: Callable[[], None]) -> None:
        self._start_threads()
        batch = _Batch(works)
        for work in works:
            self._works.put(partial(batch.do, work))
        cancelled: asyncio.CancelledError | None = None
        while not batch.ended.done():
            try:
                await asyncio.shield(batch.ended)
            except asyncio.CancelledError as error:
                cancelled = error  # the memory is given back afterwards
        failed = batch.take_failed()
        try:
            if cancelled is not None:
                raise cancelled
            if failed:
                raise failed[0]
        finally:
            failed.clear()  # else an error, its traceback and this frame hold each other
            cancelled = None

    def _start_threads(self) -> None:
        while len(self._threads) < COPY_THREADS:
            thread = Thread(target=self._work, name="overspill-copy", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                if self._threads:
                    return  # one does all there is to do, in twice the time
                raise ResourceExhausted("the system gives no thread to copy tensors in; raise its limit") from None
            self._threads.append(thread)

    def _work(self) -> None:
        while (work := self._works.get()) is not None:
            work()
            del work  # it holds memory of a request


class _Batch:  # mutable: counts its works
    """Works that are waited for together, on the loop that made it."""

    def __init__(self, works: tuple[Callable[[], None], ...]) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = len(works)
        self._outcomes: list[BaseException | None] = []
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def take_failed(self) -> list[BaseException]:
        """What works have raised, in the order of their ends. It is the caller's, and not kept here."""
        failed = [each for each in self._outcomes if each is not None]
        self._outcomes.clear()
        return failed

    def do(self, work: Callable[[], None]) -> None:
        """Does one of them, in whatever thread; the last one wakes the loop."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
            self._outcomes.append(error)
        else:
            self._outcomes.append(None)
        if len(self._outcomes) == self._count:  # of two at the same moment both may see it
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def move(source: memoryview, target: memoryview) -> None:
    """Copies bytes of the same number."""
    # numpy lets other threads run while it copies; a slice assignment would not.
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
