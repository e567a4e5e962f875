"""Questions are put one at a time, with pauses, and answered for all who wait for the same."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from frontdoor.turns import Turns
from tests.sim.virtual import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import Coroutine


class Node:  # mutable: counts
    """Somebody who takes 0.1 s for an answer, which is how often he was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.at_once = 0
        self.at_s: list[float] = []

    async def answer(self) -> int:
        self.asked += 1
        self.at_once += 1
        assert self.at_once == 1
        self.at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.1)
        self.at_once -= 1
        return self.asked


def run(story: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(story)


def test_a_crowd_with_one_question_is_answered_once_or_twice() -> None:
    async def story() -> None:
        turns, node = Turns(), Node()
        first = asyncio.create_task(turns.ask("a", node.answer))
        await asyncio.sleep(0.05)  # it is being answered: what follows must not get that answer
        crowd = [asyncio.create_task(turns.ask("a", node.answer)) for _ in range(1000)]
        assert await first == 1
        assert set(await asyncio.gather(*crowd)) == {2}

    run(story())


def test_the_node_is_left_alone_between() -> None:
    async def story() -> None:
        turns, node = Turns(), Node()
        await asyncio.gather(*(turns.ask(key, node.answer) for key in range(4)))
        gaps = [later - earlier for earlier, later in zip(node.at_s, node.at_s[1:], strict=False)]
        assert all(gap == pytest.approx(0.2) for gap in gaps)

    run(story())


def test_who_gives_up_leaves_the_answer_to_the_others() -> None:
    async def story() -> None:
        turns, node = Turns(), Node()
        tasks = [asyncio.create_task(turns.ask("a", node.answer)) for _ in range(3)]
        await asyncio.sleep(0.05)
        tasks[0].cancel()
        assert await tasks[1] == await tasks[2] == 1

    run(story())


def test_an_error_is_everybodys_and_the_next_question_is_put() -> None:
    async def story() -> None:
        turns, node = Turns(), Node()

        async def broken() -> int:
            raise ValueError("no")

        found = await asyncio.gather(*(turns.ask("a", broken) for _ in range(2)), return_exceptions=True)
        assert [type(each) for each in found] == [ValueError, ValueError]
        assert await turns.ask("a", node.answer) == 1

    run(story())
