"""Memory that copiers may map: told once of its end, and found by the address of a view."""

from __future__ import annotations

import asyncio
import os

import pytest

from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from frontdoor.mappable import Arenas, Mappable

ARENA_BYTES = 1 << 16


def test_its_end_is_told_once() -> None:
    heard: list[Mappable] = []
    memory = Mappable(-1, 5)
    memory.on_close = heard.append
    memory.close()
    memory.close()
    assert heard == [memory]


def test_a_view_is_found_in_its_arena_and_in_no_other() -> None:
    async def story() -> None:
        arena, other, arenas = Arena.create(ARENA_BYTES), Arena.create(ARENA_BYTES), Arenas(asyncio.get_running_loop())
        with Lease.of(arena, 4096), Lease.of(arena, 4096) as lease:
            place = arenas.place(arena, lease.view[10:20].toreadonly())
            assert place is not None
            assert (place[0].nbytes, place[1]) == (ARENA_BYTES, lease.offset + 10)
            assert os.fstat(place[0].fd).st_ino == os.fstat(arena.fd).st_ino
            again = arenas.place(arena, lease.view)
            assert again == (place[0], lease.offset), "one arena is mapped once"
            assert arenas.place(other, lease.view) is None
        assert arenas.place(arena, memoryview(bytes(10))) is None
        arenas.close()
        arena.close_fd()
        other.close_fd()

    asyncio.run(story())


@pytest.mark.parametrize("how", ["gone", "closed"])
def test_its_descriptor_goes_with_the_arena_or_with_all(how: str) -> None:
    async def story() -> None:
        arena, arenas = Arena.create(ARENA_BYTES), Arenas(asyncio.get_running_loop())
        heard: list[Mappable] = []
        place = arenas.place(arena, arena.view[:1])
        assert place is not None
        place[0].on_close = heard.append
        arena.close_fd()
        if how == "gone":
            del arena
            await asyncio.sleep(0)
        else:
            arenas.close()
        assert heard == [place[0]]
        assert place[0].fd == -1

    asyncio.run(story())


def test_an_arena_that_is_closed_is_not_mapped_any_more() -> None:
    async def story() -> None:
        arena, arenas = Arena.create(ARENA_BYTES), Arenas(asyncio.get_running_loop())
        arena.close_fd()
        assert arenas.place(arena, arena.view[:1]) is None
        arenas.close()

    asyncio.run(story())
