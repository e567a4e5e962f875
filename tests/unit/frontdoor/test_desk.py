"""What a front door knows of its node stays fresh, whatever its clients have the node do."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar, cast

import pytest

from fabric.control import READY, ModelState
from fabric.errors import DeadlineExceeded, Unavailable
from frontdoor.desk import CHANGES_MAX, Desk

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from fabric.control import ModelStatistics
    from fabric.local.control import NodeControl

Result = TypeVar("Result")


class Control:
    """A node whose loads last until they are let go, and which answers or hangs as it is told."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.hangs = False
        self.broken: Exception | None = None
        self.loads = 0
        self.serial = 1
        self.asked: list[str] = []

    def index(self) -> tuple[ModelState, ...]:
        if self.broken is not None:
            raise self.broken
        self.asked.append("index")
        return (ModelState("m", "1", READY, "", self.serial),)

    def config(self, model: str, version: str) -> str:
        self.asked.append("config")
        return f'{{"name": "{model}", "version": "{version}"}}'

    def statistics(self, _model: str, timeout_s: float) -> tuple[ModelStatistics, ...]:
        if self.hangs:
            raise DeadlineExceeded(f"the node did not answer in {timeout_s} s; ask again")
        return ()

    def load(self, _model: str, _config: str) -> None:
        self.loads += 1
        assert self.go_on.wait(60.0)


def run(control: Control, story: Callable[[Desk], Coroutine[None, None, Result]]) -> Result:
    """A story with a desk, whose threads have ended afterwards."""
    desk = Desk(cast("NodeControl", control))
    try:
        return asyncio.run(story(desk))
    finally:
        desk.close()
        for thread in threading.enumerate():
            if thread.name.startswith(("overspill-desk", "overspill-change")):
                thread.join(30.0)


def test_loads_that_last_hold_up_no_look_and_are_bounded() -> None:
    control = Control()

    async def story(desk: Desk) -> tuple[int, int]:
        tasks = [asyncio.create_task(desk.load("m", "")) for _ in range(40)]
        async with asyncio.timeout(30.0):
            while sum(task.done() for task in tasks) < len(tasks) - CHANGES_MAX:
                await desk.look()
            refused = [task for task in tasks if task.done()]
            assert all(isinstance(task.exception(), Unavailable) for task in refused)
            given_up, *rest = [task for task in tasks if not task.done()]
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            with pytest.raises(Unavailable):
                await desk.load("m", "")  # the one that nobody waits for goes on, and counts
            control.go_on.set()
            await asyncio.gather(*rest)
            while control.loads == CHANGES_MAX:  # until the end of the one that was given up is known
                with suppress(Unavailable):
                    await desk.load("m", "")
        return len(refused), len(desk.models)

    assert run(control, story) == (40 - CHANGES_MAX, 1)
    assert control.loads == CHANGES_MAX + 1


def test_a_node_that_hangs_is_told_and_one_that_is_back_too() -> None:
    control = Control()

    async def story(desk: Desk) -> None:
        desk.tell_ready(ready=True)
        told = asyncio.Event()
        desk.on_news(told.set)
        looking = asyncio.create_task(desk.look_for_ever())
        async with asyncio.timeout(30.0):
            for hangs in (True, False):
                control.hangs = hangs
                while desk.ready is hangs:
                    await told.wait()
                    told.clear()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    run(control, story)


@pytest.mark.parametrize("error", [Unavailable("not now; wait"), OSError(24, "too many open files"), RuntimeError()])
def test_a_look_that_fails_leaves_what_was_known(error: Exception) -> None:
    control = Control()

    async def story(desk: Desk) -> None:
        await desk.look()
        control.broken = error
        await desk.look()
        assert [model.name for model in desk.models] == ["m"]

    run(control, story)


def test_what_was_loaded_anew_is_described_anew_and_nothing_else_is() -> None:
    control = Control()

    async def story(desk: Desk) -> None:
        for serial in (1, 1, 2):
            control.serial = serial
            await desk.look()

    run(control, story)
    assert control.asked == ["index", "config", "index", "index", "config"]


def test_news_are_looked_at_when_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("frontdoor.desk.LOOK_S", 600.0)
    control = Control()

    async def story(desk: Desk) -> None:
        news = asyncio.Event()
        desk.on_news(news.set)
        looking = asyncio.create_task(desk.look_for_ever())
        async with asyncio.timeout(30.0):
            for serial in range(2, 12):
                control.serial = serial
                while not desk.models or desk.models[0].serial != serial:
                    desk.look_soon()
                    await news.wait()
                    news.clear()
        looking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await looking

    run(control, story)


def test_who_asks_at_once_gets_nothing_older_than_the_question() -> None:
    control = Control()

    async def story(desk: Desk) -> None:
        asked = []
        for serial in range(2, 40):
            control.serial = serial
            asked.append(asyncio.create_task(desk.fresh()))
            if serial % 4 == 0:
                await asked[-1]
                assert desk.models[0].serial == serial
            else:
                await asyncio.sleep(0)
        await asyncio.gather(*asked)

    run(control, story)
