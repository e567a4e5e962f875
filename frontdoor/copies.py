"""Copies of tensors between messages, shared memory and the engine's memory: large ones elsewhere, small ones at once.

A copy in a thread, or by another process, keeps no other client waiting. Large ones of shared memory are the copiers'
(`frontdoor/copiers.py`), and what these leave undone is the kernel's, in threads. A copy that nobody waits for any more
is waited for all the same, if it has begun: its memory is given back afterwards. This module knows no request. Read
`frontdoor/door.py` next.
"""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import ResourceExhausted, Unavailable
from frontdoor.copiers import PAGE_BYTES, Copiers
from frontdoor.together import Together

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.memory.arena import Arena
    from frontdoor.held import Held
    from frontdoor.seat import Piece

INLINE_COPY_BYTES = 1 << 20
"""A copy up to this takes 0.15 ms, and to hand it to a thread as long on a busy machine: 1 MiB through shared memory
took 1.07 ms so, and 1.16 to 1.42 by a thread."""
COPY_THREADS = 2
"""Copies share the memory's bandwidth, which two threads of a small machine fill."""


class Copies:  # mutable: owns threads
    """The copies of one front door. Its threads take what is next in a queue; a pool's futures and locks would take
    longer to begin two halves than a tenth of their copy does."""

    def __init__(self, copiers: Copiers | None = None) -> None:
        self._works: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._copiers = copiers or Copiers()
        self._closed = False

    @property
    def copier_deaths(self) -> int:
        """Processes of ours that ended while they copied, or before."""
        return self._copiers.deaths

    def close(self) -> None:
        """Lets go of the copiers, and of the threads after what they are at. What would be copied in threads afterwards
        is refused."""
        self._closed = True
        self._copiers.close()
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

    async def take(self, region: Held, offset: int, view: memoryview, arena: Arena | None) -> None:
        """Fills a view of the engine's memory from a region. `arena` is what the view lies in, if it does. Raises what
        the region raises."""
        await self._between(region, offset, view, arena, outward=False)

    async def put(self, region: Held, offset: int, view: memoryview, arena: Arena | None) -> None:
        """Writes a view of the engine's memory to a region, likewise."""
        await self._between(region, offset, view, arena, outward=True)

    async def _between(
        self, region: Held, offset: int, view: memoryview, arena: Arena | None, *, outward: bool
    ) -> None:
        copy, mappable = partial(region.write_part if outward else region.read_part, offset), region.mappable
        pieces: tuple[Piece, ...] = ()
        if len(view) > INLINE_COPY_BYTES and mappable is not None and arena is not None:
            pieces = self._copiers.pieces(mappable, region.begin + offset, arena, view, outward=outward)
        if not pieces:
            await self.halves(view, copy)
            return
        undone = await self._copiers.run(pieces)
        if undone:
            # The kernel comes up short where a copier had to die, and says what is wrong.
            await self._together(*(partial(copy, each.at, view[each.at : each.at + each.nbytes]) for each in undone))
        region.check_end(offset + len(view))

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
        batch: Together[BaseException | None] = Together(len(works))
        for work in works:
            self._works.put(partial(_do, work, batch))
        failed = [each for each in await batch.wait() if each is not None]
        try:
            if failed:
                raise failed[0]
        finally:
            failed.clear()  # else an error, its traceback and this frame hold each other

    def _start_threads(self) -> None:
        if self._closed:
            raise Unavailable("the front door has ended here; use another")
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


def _do(work: Callable[[], None], batch: Together[BaseException | None]) -> None:
    """Does one of several, in whatever thread."""
    try:
        if not batch.given_up:
            work()
    except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
        batch.end_elsewhere(error)
    else:
        batch.end_elsewhere(None)


def move(source: memoryview, target: memoryview) -> None:
    """Copies bytes of the same number."""
    # numpy lets other threads run while it copies; a slice assignment would not.
    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
