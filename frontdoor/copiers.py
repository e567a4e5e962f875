"""Two processes that copy between clients' shared memory and the engine's as fast as memory is, and that may die of it.

A client may cut its memory at any time, and whoever touches it then dies of SIGBUS. So it is not this process that
does: copiers have both sides mapped and use a plain `memcpy`. What one of them leaves undone, whatever became of it,
is the kernel's to do (`frontdoor/copies.py`), which says what is wrong with the memory. A copier that died is replaced,
not sooner than a second after its start. This module never touches a client's memory. Read `frontdoor/copies.py` next.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from frontdoor.mappable import Arenas
from frontdoor.seat import Piece, Seat, Started, start
from frontdoor.together import Together

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from fabric.memory.arena import Arena
    from frontdoor.mappable import Mappable

_log = logging.getLogger(__name__)
COPIERS: Final = 2
"""They share the memory's bandwidth, which two processors of a small machine fill."""
PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class CopierLimits:
    """`timeout_s` is what a piece may take beside the time for its bytes. `again_s` is the time from one start of a
    copier to the next: a client that has them die again and again costs some hundredths of a processor, and others the
    speed of the kernel's way. `unfit_again_s` is that time where it never copied anything. `mapped_bytes_max` is of all
    regions together: it costs no memory, but for 2 MiB of page tables for each GiB that is used."""

    timeout_s: float = 1.0
    again_s: float = 1.0
    unfit_again_s: float = 5.0
    mapped_bytes_max: int = 64 << 30


_LIMITS: Final = CopierLimits()


class Copiers:  # mutable: owns processes
    """The copiers of one front door, started when the first copy asks for them. Used on one loop."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        starts: Callable[[], Started] = start,
        limits: CopierLimits = _LIMITS,
    ) -> None:
        self._clock = clock
        self._starts = starts
        self._limits = limits
        self._seats = tuple(Seat(self._serve, self._died, limits.timeout_s) for _ in range(COPIERS))
        self._starting: dict[int, Future[Started]] = {}
        self._start_at_s = [float("-inf")] * COPIERS
        self._starter: ThreadPoolExecutor | None = None
        self._waiting: deque[Piece] = deque()
        self._arenas: Arenas | None = None
        self._number = 0
        self._left = limits.mapped_bytes_max
        self._closed = False
        self.deaths = 0
        """Processes that ended, of whatever cause."""

    def pieces(
        self, client: Mappable, client_at: int, arena: Arena, view: memoryview, *, outward: bool
    ) -> tuple[Piece, ...]:
        """What is to be copied between a client's memory and a view of the engine's, in halves; nothing where copiers
        cannot do it, now or ever."""
        self._start_some()
        if client.spoiled or not any(seat.alive for seat in self._seats) or not self._known(client):
            return ()
        if self._arenas is None:
            self._arenas = Arenas(asyncio.get_running_loop())
        place = self._arenas.place(arena, view)
        if place is None:
            return ()
        ours, ours_at = place
        self._known(ours, counted=False)
        half = len(view) // 2 // PAGE_BYTES * PAGE_BYTES
        batch: Together[Piece | None] = Together(2)
        return tuple(
            Piece(at, nbytes, client, client_at + at, ours, ours_at + at, outward, batch)
            for at, nbytes in ((0, half), (half, len(view) - half))
        )

    async def run(self, pieces: tuple[Piece, ...]) -> list[Piece]:
        """Copies; gives those that are undone. A cancelled wait ends when nobody copies any more."""
        for piece, seat in zip(pieces, self._seats, strict=True):
            # The same half by the same one, which has its pages at hand then.
            idle = next((each for each in (seat, *self._seats) if each.idle), None)
            if idle is not None:
                idle.copy(piece)
            else:
                self._waiting.append(piece)
        self._refuse_unserved()
        return [piece for piece in await pieces[0].batch.wait() if piece is not None]

    def close(self) -> None:
        """Ends all. What is being copied is undone."""
        self._closed = True
        if self._starter is not None:
            self._starter.shutdown()  # a start takes some milliseconds
        for future in self._starting.values():
            if future.exception() is None:
                future.result().end()
        self._starting.clear()
        for seat in self._seats:
            seat.end()
        self._refuse_unserved()
        if self._arenas is not None:
            self._arenas.close()

    # Pieces.

    def _serve(self, seat: Seat) -> None:
        """A copier could do more."""
        while self._waiting and seat.idle:
            piece = self._waiting.popleft()
            if piece.client.spoiled or piece.batch.given_up:
                piece.batch.end(piece)
            else:
                seat.copy(piece)

    def _refuse_unserved(self) -> None:
        if not any(seat.alive for seat in self._seats):
            while self._waiting:
                piece = self._waiting.popleft()
                piece.batch.end(piece)

    def _known(self, memory: Mappable, *, counted: bool = True) -> bool:
        """Gives memory its number; tells whether it may be mapped."""
        if not memory.number:
            if counted and memory.nbytes > self._left:
                return False
            self._left -= memory.nbytes * counted
            self._number += 1
            memory.number = self._number
            memory.on_close = partial(self._forget, counted=counted)
        return True

    def _forget(self, memory: Mappable, *, counted: bool) -> None:
        self._left += memory.nbytes * counted
        for seat in self._seats:
            seat.forget(memory.number)

    # Processes.

    def _start_some(self) -> None:
        now = self._clock()
        for number, seat in enumerate(self._seats):
            if seat.empty and number not in self._starting and now >= self._start_at_s[number] and not self._closed:
                self._start_at_s[number] = now + self._limits.again_s
                # In a thread of its own, which lives as long as they should: they die with it.
                starter = self._starter or ThreadPoolExecutor(1, thread_name_prefix="overspill-copiers")
                with suppress(RuntimeError):  # no thread left; it is tried again, by one that remembers nothing of it
                    future = self._starting[number] = starter.submit(self._starts)
                    self._starter = starter
                    future.add_done_callback(partial(self._tell, asyncio.get_running_loop(), number))

    def _tell(self, loop: asyncio.AbstractEventLoop, number: int, future: Future[Started]) -> None:
        with suppress(RuntimeError):  # the loop is closed: so are we
            loop.call_soon_threadsafe(self._take, number, future)

    def _take(self, number: int, future: Future[Started]) -> None:
        if self._starting.pop(number, None) is None:
            return  # closed meanwhile
        error = future.exception()
        if error is not None:
            self._start_at_s[number] = self._clock() + self._limits.unfit_again_s
            _log.warning("no process to copy shared memory can be started (%s); the kernel copies it", error)
            return
        self._seats[number].take(future.result())
        self._serve(self._seats[number])

    def _died(self, seat: Seat, ending: str) -> None:
        self.deaths += 1
        number = self._seats.index(seat)
        if not seat.is_fit:
            self._start_at_s[number] = self._clock() + self._limits.unfit_again_s
        _log.warning("copier %d of shared memory %s; the kernel does its work", number, ending)
        self._refuse_unserved()
