"""Copies over one region, in the test's own process, with copiers of its choice; what the kernel was left to do."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import numpy as np

from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from frontdoor.clients import Owner
from frontdoor.copiers import CopierLimits, Copiers
from frontdoor.copies import Copies
from frontdoor.regions import Region, Regions
from frontdoor.seat import Started, start

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

    import pytest

OWNER = Owner("me", None, None, ("127.0.0.1", 1))
NBYTES = 4 << 20
BEGIN = 5000
"""Where the region begins in its file, in the middle of a page."""
AT = 123
WORDS = (np.arange(NBYTES - 4096) % 251).astype(np.uint8)
FOREVER = CopierLimits(timeout_s=60.0)


class World:  # mutable: a test's
    """Copies over one region of a folder's file, with an arena. `kernel` counts what the kernel was left to do."""

    def __init__(self, folder: Path, copies: Copies, copiers: Copiers, started: list[Started]) -> None:
        self.path = folder / "key"
        self.copies = copies
        self.copiers = copiers
        self.started = started
        self.regions = Regions(folder=folder)
        self.arena = Arena.create(4 * NBYTES)
        self.kernel = 0
        self.times = 0
        self.region = self.register("r")

    def register(self, name: str) -> Region:
        self.regions.register(OWNER, name, "key", BEGIN, NBYTES)
        region = self.regions.of_kind(OWNER, name, Region)[0]
        region.hold()
        return region

    def renew(self) -> None:
        """Has the region registered anew, so that copiers copy it again."""
        self.regions.unregister(OWNER, "r")
        self.region.let_go()
        self.region = self.register("r")

    async def there_and_back(self, region: Region | None = None) -> None:
        """A copy out and one in; raises what they raise, and what is wrong with the bytes. They are others each time,
        since memory is used again."""
        region = region or self.region
        self.times += 1
        words = np.roll(WORDS, self.times)
        with Lease.of(self.arena, len(WORDS)) as out:
            np.copyto(np.frombuffer(out.view, np.uint8)[: len(WORDS)], words)
            await self.copies.put(region, AT, out.view[: len(WORDS)], self.arena)
        await self.back(region)

    async def back(self, region: Region) -> None:
        """A copy in of what went out last."""
        with Lease.of(self.arena, len(WORDS)) as into:
            np.frombuffer(into.view, np.uint8).fill(255)  # which is no word
            await self.copies.take(region, AT, into.view[: len(WORDS)], self.arena)
            assert bool(np.all(np.frombuffer(into.view, np.uint8)[: len(WORDS)] == np.roll(WORDS, self.times)))

    async def until(self, true: Callable[[], bool]) -> None:
        """Copies until something is so."""
        give_up_at = time.monotonic() + 20.0
        while not true():
            assert time.monotonic() < give_up_at
            await self.there_and_back()
            await asyncio.sleep(0.001)

    async def both(self) -> None:
        """Until both copiers work, and have done all of a copy."""
        await self.until(self.are_idle)
        before = self.kernel
        await self.there_and_back()
        assert self.kernel == before, "the kernel did nothing"

    def pids(self) -> list[int]:
        return [seat._started.process.pid for seat in self.copiers._seats if seat._started is not None]

    def are_idle(self) -> bool:
        return sum(seat.idle for seat in self.copiers._seats) == 2


@asynccontextmanager
async def world(
    folder: Path, monkeypatch: pytest.MonkeyPatch, limits: CopierLimits = FOREVER, starts: Callable[[], Started] = start
) -> AsyncIterator[World]:
    """What it leaves behind, all tests look for (`tests/leaks.py`)."""

    started: list[Started] = []

    def start_noted() -> Started:
        started.append(starts())
        return started[-1]

    copiers = Copiers(starts=start_noted, limits=limits)
    made = World(folder, Copies(copiers), copiers, started)
    move = Region._move

    def counted(region: Region, by: Callable[..., int], at: int, view: memoryview) -> None:
        made.kernel += 1
        move(region, by, at, view)

    monkeypatch.setattr(Region, "_move", counted)
    try:
        yield made
    finally:
        made.copies.close()
        made.regions.close()
        made.arena.close_fd()
        made.region.let_go()
