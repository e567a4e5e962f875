"""A client and a front door's copies over one region, in one process: run as a program, which a bus error would end.

    python -m tests.integration.shm_attack ROUNDS SEED        a client that cuts, punches, rewrites and replaces
    python -m tests.integration.shm_attack orphans            copiers, one of them stopped, whose numbers it prints

Copies go in and out as the door has them (`frontdoor/copies.py`), while the client does its worst; a region that was
the end of a copier is registered anew, so that the next copier meets it. Prints how many copies were whole, how many
were refused, and how many copiers that took.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fabric.errors import InvalidArgument
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from frontdoor.clients import Owner
from frontdoor.copiers import CopierLimits, Copiers
from frontdoor.copies import Copies
from frontdoor.failures import Refusal
from frontdoor.regions import Region, Regions

if TYPE_CHECKING:
    from collections.abc import Callable

NBYTES = 8 << 20
KEY = f"osp_test_attack_{os.getpid()}"
PATH = Path("/dev/shm") / KEY
OWNER = Owner("me", None, None, ("127.0.0.1", 1))
PUNCH_HOLE_KEEP_SIZE = 3  # fallocate(2)
SIZES = (0, 1, 4096, NBYTES // 2 - 1, NBYTES // 2, NBYTES - 4097, NBYTES - 1)
UNWRITTEN = 251
MEET_S = 30.0
"""How long the client goes on at most until copies and copiers have met what it does."""
WORDS = (np.arange(NBYTES) % 250 + 1).astype(np.uint8)
LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def children() -> list[int]:
    """The processes of this one, dead ones that nobody waited for included."""
    found = ((thread / "children").read_text() for thread in Path("/proc/self/task").iterdir())
    return [int(pid) for text in found for pid in text.split()]


def region_of(regions: Regions) -> Region | None:
    """The region, registered anew where it is left to the kernel for good; None while its memory is cut."""
    with suppress(InvalidArgument, Refusal):  # it is cut just now, or another file
        for region in regions.of_kind(OWNER, "", Region):
            if region.mappable is not None and not region.mappable.spoiled:
                return region
        regions.unregister(OWNER, "r")
        regions.register(OWNER, "r", KEY, 0, NBYTES)
        return regions.of_kind(OWNER, "r", Region)[0]
    return None


async def copied(copies: Copies, counts: list[int], going: Callable[[], bool]) -> None:
    """Copies out and in; counts those that were whole and those refused. Raises what else it meets."""
    regions, arena = Regions(), Arena.create(4 * NBYTES)
    with Lease.of(arena, NBYTES) as out, Lease.of(arena, NBYTES) as into:
        np.copyto(np.frombuffer(out.view, np.uint8), WORDS)
        found = np.frombuffer(into.view, np.uint8)
        while going():
            region = region_of(regions)
            if region is None:
                await asyncio.sleep(0)
                continue
            found.fill(UNWRITTEN)
            region.hold()
            for move, view in ((copies.put, out.view), (copies.take, into.view)):
                try:
                    await move(region, 0, view, arena)
                except InvalidArgument:
                    counts[1] += 1
                else:
                    counts[0] += 1
                    # Whole: each byte is ours, or none where the client has let go of the page.
                    assert move == copies.put or bool(np.all((found == WORDS) | (found == 0))), "a byte of nobody"
            region.let_go()
        np.copyto(np.frombuffer(out.view, np.uint8), WORDS[::-1])
        region = None
        while region is None:
            region = region_of(regions)
        await copies.put(region, 0, out.view, arena)
        await copies.take(region, 0, into.view, arena)
        assert bool(np.all(found == WORDS[::-1])), "the memory is as good as new"
        del found
    regions.close()


def spoil(fd: int, dice: random.Random) -> None:
    """One thing that a client may do to its memory."""
    what = dice.randrange(5)
    if what == 0:
        os.ftruncate(fd, dice.choice(SIZES))
    elif what == 1:
        LIBRARY.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, dice.randrange(NBYTES), 1 << dice.randrange(12, 23))
    elif what == 2:
        os.pwrite(fd, bytes(4096), dice.randrange(NBYTES - 4096))  # makes it longer where it was cut
    elif what == 3:  # another file under its name for a moment, which is nobody's region
        mine = PATH.rename(PATH.with_name(f"{KEY}_mine"))
        PATH.touch()
        mine.rename(PATH)
    time.sleep(dice.random() * 2e-3)
    os.ftruncate(fd, NBYTES)


def attack(rounds: int, seed: int) -> None:
    """Prints counts, and ends with an error unless memory, processes and descriptors are as they should be."""
    dice = random.Random(seed)
    fd = os.open(PATH, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, NBYTES)
    before = len([each for each in Path("/proc/self/fd").iterdir() if each.is_symlink()])
    copiers = Copiers(limits=CopierLimits(again_s=0.0))
    copies = Copies(copiers)

    counts = [0, 0]

    def spoil_all() -> None:
        give_up_at, done = time.monotonic() + MEET_S, 0
        # On a busy machine the copies may miss it all for a while.
        while done < rounds or (not (all(counts) and copiers.deaths) and time.monotonic() < give_up_at):
            spoil(fd, dice)
            done += 1

    with ThreadPoolExecutor(1) as threads, asyncio.Runner() as runner:
        client = threads.submit(spoil_all)
        try:
            runner.run(copied(copies, counts, client.running))
            client.result()
        finally:
            copies.close()
    assert not children(), "each was waited for"
    gc.collect()  # an arena goes with the last error that has seen it
    left = [each.readlink() for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    assert len(left) == before, left
    assert threading.active_count() == 1
    sys.stdout.write(f"{counts[0]} {counts[1]} {copiers.deaths}\n")


async def orphans() -> None:
    """Prints the numbers of two copiers, the second of which is stopped, and waits to be killed."""
    os.close(os.open(PATH, os.O_CREAT | os.O_RDWR, 0o600))
    os.truncate(PATH, NBYTES)
    regions, arena, copies = Regions(), Arena.create(2 * NBYTES), Copies()
    regions.register(OWNER, "r", KEY, 0, NBYTES)
    with Lease.of(arena, NBYTES) as lease:
        for _ in range(100):  # the last ones by both, whatever the first ones met
            await copies.take(regions.find(OWNER, "r"), 0, lease.view, arena)
    os.kill(children()[1], signal.SIGSTOP)
    sys.stdout.write("{} {}\n".format(*children()))
    sys.stdout.flush()
    await asyncio.sleep(60)


if __name__ == "__main__":
    try:
        asyncio.run(orphans()) if sys.argv[1] == "orphans" else attack(int(sys.argv[1]), int(sys.argv[2]))
    finally:
        PATH.unlink(missing_ok=True)
