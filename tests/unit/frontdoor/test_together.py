"""Works that are waited for together: their outcomes once all have ended, also for who was cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from frontdoor.together import Together


@pytest.mark.parametrize("elsewhere", [False, True])
def test_outcomes_come_when_all_have_ended_in_their_order(elsewhere: bool) -> None:
    async def story() -> None:
        batch: Together[int] = Together(3)
        end = batch.end_elsewhere if elsewhere else batch.end
        end(1)
        waiting = asyncio.create_task(batch.wait())
        await asyncio.sleep(0)
        end(2)
        await asyncio.sleep(0)
        assert not waiting.done()
        end(3)
        assert await waiting == [1, 2, 3]

    asyncio.run(story())


def test_what_has_ended_before_is_not_waited_for() -> None:
    async def story() -> None:
        batch: Together[int] = Together(1)
        batch.end(7)
        assert await batch.wait() == [7]
        assert await Together[int](0).wait() == []

    asyncio.run(story())


@pytest.mark.parametrize("late", [False, True])
def test_a_cancelled_wait_goes_on_until_all_have_ended(late: bool) -> None:
    async def story() -> None:
        batch: Together[int] = Together(2)
        waiting = asyncio.create_task(batch.wait())
        await asyncio.sleep(0)
        for _ in range(2):  # who cancels again does not get it sooner
            waiting.cancel()
            await asyncio.sleep(0)
            assert not waiting.done()
        assert batch.given_up, "what has not begun need not begin"
        batch.end(1)
        batch.end(2)
        if late:  # in the turn in which it would have had its answer
            waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(story())


def test_a_cancel_in_the_turn_of_the_last_end_is_not_lost() -> None:
    async def story() -> None:
        batch: Together[int] = Together(1)
        waiting = asyncio.create_task(batch.wait())
        await asyncio.sleep(0)
        batch.end(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(story())
