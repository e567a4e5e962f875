"""Calls on loops of callers: each has a socket of its own, and what a closed loop leaves behind costs nobody a slot."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from fabric.errors import NodeLost
from fabric.local.channel import LocalChannel
from fabric.local.loops import JOIN_S, LOOPS_MAX
from tests.contract.local_world import LocalWorld
from tests.contract.world import CALLERS, Bytes, Client, check_flipped, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.transport import Answer

LARGE = 200_000


@pytest.fixture(scope="module")
def world() -> Iterator[LocalWorld]:
    made = LocalWorld()
    yield made
    made.close()


@contextmanager
def client_of(world: LocalWorld) -> Iterator[Client]:
    """A client whose own loop reads the session's first socket, as a link's background loop does."""
    caller = CALLERS["async"]()
    with Client(world, caller) as client:
        caller.watch(client.channel, lambda: None)
        yield client
    caller.close()


@pytest.fixture
def background(world: LocalWorld) -> Iterator[Client]:
    with client_of(world) as client:
        yield client


def channel_of(client: Client) -> LocalChannel:
    assert isinstance(client.channel, LocalChannel)
    return client.channel


async def served(client: Client) -> None:
    """Waits until the running loop has its socket."""
    loop, channel = asyncio.get_running_loop(), channel_of(client)
    assert channel.welcomes(loop)
    await asyncio.to_thread(channel.serve, loop)
    assert await asyncio.to_thread(wait_until, lambda: channel.serves(loop))
    assert not channel.welcomes(loop)


async def ask(client: Client, model: str, data: Bytes, timeout_s: float = 10.0) -> Answer:
    return await client.channel.call_async(client.request(model, data), client.world.deadline(timeout_s))


def sweep(client: Client) -> int:
    """A ping, which takes over what closed loops have left. Returns how many calls await their final frame."""
    client.caller.ping(client.channel, client.world.deadline(5.0))
    return channel_of(client).zombies


def sockets(client: Client) -> int:
    return len(channel_of(client)._loops.all)


def test_two_loops_and_the_background_loop_at_once(background: Client, pool: Bytes) -> None:
    async def many(start: int) -> None:
        await served(background)
        for turn in range(20):
            given = [pool[start + turn * 10 + step :][:size] for step, size in enumerate((50, 5000, LARGE))]
            answers = await asyncio.gather(*(ask(background, "flip", data) for data in given))
            for answer, data in zip(answers, given, strict=True):
                check_flipped(answer, data)

    running = [background.start("run/100/flip", pool[number : number + 300]) for number in range(10)]
    others = [CALLERS["async"]() for _ in range(2)]
    futures = [
        asyncio.run_coroutine_threadsafe(many(start * 777), other.loop)  # type: ignore[attr-defined]
        for start, other in enumerate(others)
    ]
    for future in futures:
        future.result(60)
    for number, begun in enumerate(running):
        check_flipped(begun.result(20), pool[number : number + 300])
    assert sockets(background) == len(others)
    for other in others:
        other.close()
    sweep(background)
    assert sockets(background) == 0, "a closed loop keeps its socket"


@pytest.mark.parametrize("size", [300, LARGE])
def test_what_a_closed_loop_left_is_awaited_elsewhere(background: Client, pool: Bytes, size: int) -> None:
    """Its calls were cancelled when it ended, and their final frames came later: no slot stays lent."""
    arena = channel_of(background).arena
    before = arena.lent_bytes()

    async def leave() -> None:
        await served(background)
        late = [asyncio.create_task(ask(background, "run/300/flip", pool[step : step + size])) for step in range(4)]
        assert await asyncio.to_thread(wait_until, lambda: background.arrived() >= begun + len(late))
        assert not any(task.done() for task in late)

    begun = background.arrived()
    asyncio.run(leave())  # it cancels what is left
    assert wait_until(lambda: not sweep(background))
    sweep(background)
    assert sockets(background) == 0
    assert wait_until(lambda: (gc.collect(), arena.lent_bytes() == before)[1])
    background.flips(pool[:size])


def test_a_loop_that_is_closed_in_the_middle_of_its_calls(background: Client, pool: Bytes) -> None:
    """Nobody cancelled them: their answers are nobody's, and all others go on."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(served(background))
    task = loop.create_task(ask(background, "run/100/flip", pool[:300]))
    loop.run_until_complete(asyncio.sleep(0.02))
    assert not task.done()
    loop.close()
    end_s = time.monotonic() + 5.0
    while sockets(background) and time.monotonic() < end_s:
        background.flips(pool[:300])
        sweep(background)
    assert sockets(background) == 0
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is what was asked for


def test_a_node_that_dies_is_seen_on_every_loop(pool: Bytes) -> None:
    async def until_the_end() -> None:
        await served(client)
        running = [asyncio.create_task(ask(client, "later/10000/flip", pool[:300])) for _ in range(3)]
        await asyncio.sleep(0.05)
        mortal.kill()
        for each in running:
            with pytest.raises(NodeLost):
                await each

    mortal = LocalWorld()
    with client_of(mortal) as client:
        asyncio.run(until_the_end())
        assert not client.channel.alive
    mortal.close()


def test_no_more_loops_than_there_is_room_for(background: Client, pool: Bytes) -> None:
    """The next one is told so by `serves`, and its calls go over the background loop."""
    loops = [asyncio.new_event_loop() for _ in range(LOOPS_MAX + 1)]
    channel = channel_of(background)
    for loop in loops:
        channel.serve(loop)
        loop.run_until_complete(asyncio.sleep(0.01))
    assert [channel.serves(loop) for loop in loops] == [True] * LOOPS_MAX + [False]
    assert not channel.welcomes(loops[-1])
    background.flips(pool[:300])
    for loop in loops:
        loop.close()
    sweep(background)
    assert sockets(background) == 0


def test_the_end_of_the_channel_ends_the_wait_for_a_greeting(world: LocalWorld, background: Client) -> None:
    """A stopped node greets nobody, and the thread that asked must not wait for it."""
    channel = channel_of(background)
    loop = asyncio.new_event_loop()
    world.pause()
    asking = threading.Thread(target=channel.serve, args=(loop,))
    asking.start()
    assert wait_until(lambda: bool(channel._loops._greeting))
    began_s = time.monotonic()
    channel.abort("the test ends it")
    asking.join(5)
    assert time.monotonic() - began_s < JOIN_S / 2
    world.resume()
    assert not channel.serves(loop)
    loop.close()
