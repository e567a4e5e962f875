"""Room is given in turn, to all but those whose time is over, and comes back whole."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from fabric.deadline import Deadline
from fabric.errors import ArenaFull
from frontdoor.room import Room
from tests.sim.virtual import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine


def later(loop_s: float = 10.0) -> Deadline:
    return Deadline(asyncio.get_running_loop().time() + loop_s)


def run(story: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story)


def test_who_fits_goes_at_once_and_others_in_turn() -> None:
    async def story() -> None:
        room, order = Room(100), []

        async def one(name: str, nbytes: int) -> None:
            await room.take(nbytes, later())
            order.append(name)

        await room.take(60, later())
        tasks = [asyncio.create_task(one(name, nbytes)) for name, nbytes in (("large", 50), ("small", 1))]
        await asyncio.sleep(0)
        assert order == [], "the small one does not overtake"
        room.give_back(60)
        await asyncio.gather(*tasks)
        assert order == ["large", "small"]

    run(story())


def test_what_is_larger_than_all_room_goes_alone() -> None:
    async def story() -> None:
        room = Room(100)
        await room.take(1000, later())
        with pytest.raises(ArenaFull):
            await room.take(1, later(0.5))
        room.give_back(1000)
        await room.take(1, later())

    run(story())


def test_who_leaves_the_line_holds_up_nobody() -> None:
    async def story() -> None:
        room = Room(100)
        await room.take(90, later())
        large = asyncio.create_task(room.take(50, later()))
        await asyncio.sleep(0)
        small = asyncio.create_task(room.take(5, later()))
        await asyncio.sleep(0)
        large.cancel()
        await small
        room.give_back(90)
        room.give_back(5)
        await room.take(100, later())

    run(story())


def test_room_that_comes_just_behind_a_cancel_goes_to_the_next() -> None:
    async def story() -> None:
        room = Room(100)
        await room.take(100, later())
        leaving, next_one = (asyncio.create_task(room.take(100, later())) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        room.give_back(100)
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await next_one

    run(story())


def test_room_that_came_as_its_taker_left_is_not_lost() -> None:
    async def story() -> None:
        room = Room(100)
        await room.take(100, later())
        waiting = asyncio.create_task(room.take(100, later()))
        await asyncio.sleep(0)
        room.give_back(100)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await room.take(100, later(0.1))

    run(story())
