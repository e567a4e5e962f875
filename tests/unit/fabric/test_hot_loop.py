"""The loop that calls some descriptors' actions itself: they and asyncio's own work both go on, whatever they do."""

from __future__ import annotations

import asyncio
import os
import select
import threading
from typing import TYPE_CHECKING

import pytest

from fabric.hot_loop import HotLoop, unwatch, watch
from fabric.timer_fd import TimerFd

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

LIMIT_S = 20.0


class Bell:  # mutable: rung, then read
    """An eventfd that is watched; `heard` counts the calls of its action."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)
        self.heard = 0

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def read(self) -> None:
        self.heard += os.eventfd_read(self.fd)


@pytest.fixture
def bell() -> Iterator[Bell]:
    made = Bell()
    yield made
    os.close(made.fd)


async def until(what: Callable[[], object]) -> None:
    """Until it is so; `run` bounds it."""
    while not what():  # noqa: ASYNC110 - a descriptor of the kernel's tells it, which is what is tested
        await asyncio.sleep(0)


def run(make: Callable[[], Coroutine[None, None, None]], kind: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def within() -> None:
        async with asyncio.timeout(LIMIT_S):
            await make()

    with asyncio.Runner(loop_factory=kind) as runner:
        runner.run(within())


@pytest.fixture(params=[HotLoop, asyncio.SelectorEventLoop])
def kind(request: pytest.FixtureRequest) -> Callable[[], asyncio.AbstractEventLoop]:
    made: Callable[[], asyncio.AbstractEventLoop] = request.param
    return made


def test_an_action_is_called_until_it_is_unwatched(
    bell: Bell, kind: Callable[[], asyncio.AbstractEventLoop]
) -> None:  # fmt: skip
    async def story() -> None:
        loop = asyncio.get_running_loop()
        watch(loop, bell.fd, bell.read)
        bell.ring()
        await until(lambda: bell.heard)
        unwatch(loop, bell.fd)
        bell.ring()
        for _ in range(20):
            await asyncio.sleep(0)
        assert bell.heard == 1
        unwatch(loop, bell.fd)

    run(story, kind)


@pytest.mark.parametrize("how", ["soon", "later", "future", "thread"])
def test_what_an_action_asks_of_asyncio_is_done_though_nothing_else_happens(
    bell: Bell, kind: Callable[[], asyncio.AbstractEventLoop], how: str
) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def act() -> None:
            bell.read()
            if how == "soon":
                loop.call_soon(done.set_result, None)
            elif how == "later":
                loop.call_later(0.001, done.set_result, None)
            elif how == "thread":
                loop.call_soon_threadsafe(done.set_result, None)
            else:
                done.set_result(None)

        watch(loop, bell.fd, act)
        loop.call_later(0.001, bell.ring)
        await done
        unwatch(loop, bell.fd)

    run(story, kind)


def test_an_action_that_rings_itself_keeps_neither_timers_nor_others_waiting(bell: Bell) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        other = Bell()
        loop.add_reader(other.fd, other.read)

        def again() -> None:
            bell.read()
            bell.ring()

        watch(loop, bell.fd, again)
        bell.ring()
        await asyncio.sleep(0.001)
        other.ring()
        await until(lambda: other.heard)
        assert bell.heard > 1
        unwatch(loop, bell.fd)
        loop.remove_reader(other.fd)
        os.close(other.fd)

    run(story, HotLoop)


def test_what_an_action_raises_goes_to_the_handler_and_the_loop_goes_on(bell: Bell) -> None:
    told: list[object] = []

    async def story() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))

        def act() -> None:
            bell.read()
            if bell.heard == 1:
                raise ValueError("once")

        watch(loop, bell.fd, act)
        bell.ring()
        await until(lambda: told)
        bell.ring()
        await until(lambda: bell.heard > 1)
        unwatch(loop, bell.fd)

    run(story, HotLoop)
    assert [str(error) for error in told] == ["once"]


def test_an_action_may_unwatch_another_that_is_ready_too(bell: Bell) -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        other = Bell()

        def act() -> None:
            unwatch(loop, bell.fd)
            unwatch(loop, other.fd)
            bell.heard += 1

        watch(loop, bell.fd, act)
        watch(loop, other.fd, act)
        bell.ring()
        other.ring()
        for _ in range(20):
            await asyncio.sleep(0)
        assert bell.heard == 1
        os.close(other.fd)

    run(story, HotLoop)


class Counted(TimerFd):
    """A timer that tells how often it was set."""

    times = 0

    def set_in(self, delay_s: float) -> None:
        self.times += 1
        super().set_in(delay_s)


def test_a_timer_that_is_put_off_again_and_again_is_hardly_ever_set_and_an_earlier_one_rings() -> None:
    """As the deadlines of calls are, hardly any of which ever passes."""

    async def story() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, HotLoop)
        late = loop.call_later(LIMIT_S, print)
        await asyncio.sleep(0.001)
        plain, timer = loop.hot._timer, Counted()
        loop.hot._poll.unregister(plain.fd)
        loop.hot._poll.register(timer.fd, select.EPOLLIN)
        loop.hot._timer = timer
        plain.close()
        for _ in range(20):
            late.cancel()
            late = loop.call_later(LIMIT_S, print)
            turned = loop.create_future()
            threading.Timer(0.002, loop.call_soon_threadsafe, (turned.set_result, None)).start()
            await turned
        assert timer.times <= 2
        late.cancel()
        began_s = loop.time()
        await asyncio.sleep(0.02)
        assert 0.02 <= loop.time() - began_s < LIMIT_S / 2

    run(story, HotLoop)
