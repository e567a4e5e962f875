"""Copiers of shared memory as they run: right bytes, or a typed error, whatever becomes of the processes that copy."""

from __future__ import annotations

import asyncio
import mmap
import os
import resource
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import InvalidArgument
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from frontdoor.copiers import CopierLimits
from frontdoor.regions import Region
from frontdoor.seat import Started, start
from tests.integration.copier_world import AT, BEGIN, NBYTES, OWNER, WORDS, world

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (tmp_path / "key").open("wb") as file:
        file.truncate(BEGIN + NBYTES)
    return tmp_path


def test_bytes_go_both_ways_and_the_kernel_moves_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch) as found:
            await found.both()
            assert found.path.read_bytes()[BEGIN + AT :][: len(WORDS)] == np.roll(WORDS, found.times).tobytes()
            assert (found.copiers.deaths, len(found.started)) == (0, 2)
            before = found.kernel
            await asyncio.gather(*(found.back(found.region) for _ in range(3)))  # more pieces than copiers
            assert found.kernel == before

    asyncio.run(story())


def test_copiers_stay_when_a_service_ends_and_may_map_as_much_as_the_system_lets_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch) as found:
            await found.both()
            for pid in found.pids():
                assert resource.prlimit(pid, resource.RLIMIT_NOFILE) == (before[1], before[1])
                os.kill(pid, signal.SIGTERM)  # as service managers do to each process
            await found.both()
            assert (found.copiers.deaths, len(found.started)) == (0, 2)

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(before[0], before[1] - 1), before[1]))
    try:
        asyncio.run(story())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_of_a_file_only_the_regions_pages_are_mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        page = mmap.ALLOCATIONGRANULARITY
        async with world(folder, monkeypatch, CopierLimits(60.0, mapped_bytes_max=NBYTES + page - 1)) as found:
            end = 1 << 30  # of many regions over one large file each is like this
            os.truncate(found.path, end)
            found.regions.unregister(OWNER, "r")
            found.region.let_go()
            found.regions.register(OWNER, "r", "key", end - NBYTES - 77, NBYTES)
            found.region = found.regions.of_kind(OWNER, "r", Region)[0]
            found.region.hold()
            await found.both()
            os.truncate(found.path, 0)

    asyncio.run(story())


def test_starts_that_no_thread_was_left_for_are_not_made_up_for_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_thread = threading.Thread.start

    def refuses(thread: threading.Thread) -> None:
        if thread.name.startswith("overspill-copiers"):
            raise RuntimeError("can't start new thread")
        start_thread(thread)

    async def story() -> None:
        async with world(folder, monkeypatch, CopierLimits(again_s=0.0)) as found:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuses)
                for _ in range(3):
                    await found.there_and_back()
            await found.both()
            assert len(found.started) == 2

    asyncio.run(story())


def test_an_arena_that_could_not_be_mapped_is_mapped_later(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch) as found:
            await found.both()
            found.arena.retire()
            found.arena.close_fd()
            found.arena = Arena.create(4 * NBYTES)
            limits = {pid: resource.prlimit(pid, resource.RLIMIT_AS) for pid in found.pids()}
            for pid, (_, most) in limits.items():
                resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, most))
            before = found.kernel
            await found.there_and_back()
            assert found.kernel > before
            for pid, limit in limits.items():
                resource.prlimit(pid, resource.RLIMIT_AS, limit)
            await found.both()
            assert found.copiers.deaths == 0

    asyncio.run(story())


@pytest.mark.parametrize("size", [0, BEGIN + NBYTES // 2, BEGIN + AT + len(WORDS) - 1])
def test_memory_that_was_cut_is_told_and_its_region_left_to_the_kernel(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch, CopierLimits(again_s=0.0)) as found:
            await found.both()
            deadly = size < BEGIN + AT + len(WORDS) - 4096  # in the last page nobody dies, and bytes are lost
            for move in (found.copies.put, found.copies.take):
                os.truncate(found.path, size)
                with Lease.of(found.arena, len(WORDS)) as lease, pytest.raises(InvalidArgument, match="shorter"):
                    await move(found.region, AT, lease.view[: len(WORDS)], found.arena)
                assert found.path.stat().st_size == size, "nothing made it longer"
                os.truncate(found.path, BEGIN + NBYTES)
                await found.there_and_back()
            assert (found.copiers.deaths > 0) == deadly
            assert found.region.mappable is not None
            assert found.region.mappable.spoiled == deadly
            if deadly:
                deaths = found.copiers.deaths
                other = found.register("other")
                await found.until(found.are_idle)
                before = found.kernel
                await found.there_and_back(other)
                assert found.kernel == before, "another region has the copiers"
                await found.there_and_back()
                assert found.kernel > before
                assert found.copiers.deaths == deaths
                other.let_go()

    asyncio.run(story())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_copier_that_is_killed_or_stopped_costs_no_copy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch, CopierLimits(timeout_s=0.1, again_s=0.0, unfit_again_s=0.0)) as found:
            for victim in (0, 1, 1):
                await found.until(found.are_idle)
                found.renew()  # a late one is its region's fault, as far as is known: on a busy machine any may be late
                deaths = found.copiers.deaths
                os.kill(found.pids()[victim], number)
                await found.there_and_back()
                await found.until(lambda deaths=deaths: found.copiers.deaths > deaths)  # type: ignore[misc]
            await found.until(found.are_idle)
            found.renew()
            for seat in found.copiers._seats:
                seat._timeout_s = 60.0
            await found.both()

    asyncio.run(story())


def test_a_cancelled_copy_ends_when_nobody_can_write_any_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch, CopierLimits(timeout_s=0.2)) as found:
            await found.both()
            stopped = found.started[0].process
            os.kill(stopped.pid, signal.SIGSTOP)
            # As a process that the system takes its time to end.
            monkeypatch.setattr(stopped, "kill", lambda: None)
            with Lease.of(found.arena, len(WORDS)) as lease:
                copying = asyncio.create_task(found.copies.take(found.region, 0, lease.view[: len(WORDS)], found.arena))
                for _ in range(25):  # who cancels again does not get it sooner
                    await asyncio.sleep(0.02)
                    copying.cancel()
                await asyncio.sleep(0)
                assert not copying.done()
                os.kill(stopped.pid, signal.SIGKILL)
                with pytest.raises(asyncio.CancelledError):
                    await copying
                assert stopped.returncode == -signal.SIGKILL, "dead, and waited for"

    asyncio.run(story())


def test_pieces_that_wait_for_a_copier_are_dropped_with_their_request(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with world(folder, monkeypatch) as found:
            await found.both()
            for started in found.started:
                os.kill(started.process.pid, signal.SIGSTOP)
            with Lease.of(found.arena, len(WORDS)) as one, Lease.of(found.arena, len(WORDS)) as other:
                np.frombuffer(other.view, np.uint8).fill(255)
                first, second = (
                    asyncio.create_task(found.copies.take(found.region, AT, lease.view[: len(WORDS)], found.arena))
                    for lease in (one, other)
                )
                await asyncio.sleep(0.02)
                second.cancel()
                await asyncio.sleep(0)
                for started in found.started:
                    os.kill(started.process.pid, signal.SIGCONT)
                await first
                with pytest.raises(asyncio.CancelledError):
                    await second
                assert bool(np.all(np.frombuffer(other.view, np.uint8) == 255)), "nothing was copied for nobody"

    asyncio.run(story())


def test_where_none_can_be_started_or_map_memory_the_kernel_copies(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses() -> Started:
        raise BlockingIOError("no more processes")

    async def story(starts: Callable[[], Started], limits: CopierLimits) -> None:
        async with world(folder, monkeypatch, limits, starts) as found:
            for _ in range(3):
                await found.there_and_back()
                await asyncio.sleep(0.05)
            assert found.kernel >= 6
            assert found.copiers.deaths == 0

    asyncio.run(story(refuses, CopierLimits()))

    async def rationed() -> None:
        """Their addresses are."""
        async with world(folder, monkeypatch) as found:
            await found.both()
            for pid in found.pids():
                resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))
            other = found.register("other")
            await found.there_and_back(other)
            assert found.kernel >= 2
            assert other.mappable is not None
            assert (other.mappable.spoiled, found.copiers.deaths) == (True, 0)
            other.let_go()

    asyncio.run(story(start, CopierLimits(mapped_bytes_max=NBYTES)))
    asyncio.run(rationed())


def test_what_is_unregistered_is_unmapped_and_so_is_an_arena_that_is_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mapped_kb(pid: int) -> int:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (found,) = (line for line in lines if line.startswith("VmSize"))
        return int(found.split()[1])

    async def story() -> None:
        async with world(folder, monkeypatch) as found:
            await found.both()
            pids = found.pids()
            mapped = [mapped_kb(pid) for pid in pids]
            found.regions.unregister(OWNER, "r")
            found.region.let_go()
            await falls(pids, mapped, NBYTES >> 10)
            found.region = found.register("r")
            await found.both()
            found.arena.retire()
            found.arena.close_fd()
            found.arena = Arena.create(4 * NBYTES)
            await falls(pids, mapped, 4 * NBYTES >> 10)
            await found.both()
            assert [mapped_kb(pid) for pid in pids] == mapped

    async def falls(pids: list[int], before: list[int], by_kb: int) -> None:
        for _ in range(1000):
            if all(mapped_kb(pid) <= was - by_kb for pid, was in zip(pids, before, strict=True)):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it is mapped still")

    asyncio.run(story())
