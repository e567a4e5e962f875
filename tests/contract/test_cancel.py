"""A call may be cancelled at any await, or interrupted in any system call: nothing is lost, nothing answers twice."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.errors import Cancelled, Fate, OverspillError
from tests.contract.world import CALLERS, Bytes, Client, check_flipped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.world import World

AWAITS_MAX = 400


@pytest.fixture
def on_loop(world: World) -> Iterator[Client]:
    caller = CALLERS["async"]()
    with Client(world, caller) as client:
        yield client
    caller.close()


@pytest.mark.parametrize("model", ["flip", "run/5/flip", "later/5/flip", "grow/200000"])
@pytest.mark.parametrize("size", [100, 100_000])
def test_cancelled_at_every_await(on_loop: Client, pool: Bytes, model: str, size: int) -> None:
    """Cancelled after 0, 1, 2 ... turns of the loop, until one is so late that the call is done."""
    channel, world = on_loop.channel, on_loop.world
    loop = on_loop.caller.loop  # type: ignore[attr-defined]

    async def cancel_after(turns: int) -> bool:
        call = on_loop.request(model, pool[turns : turns + size])
        task = asyncio.create_task(channel.call_async(call, world.deadline(5)))
        for turn in range(turns):
            # A turn that waits for something real now and then, so that later awaits are reached as well.
            await asyncio.sleep(0.0005 if turn % 8 == 7 else 0)
            if task.done():
                break
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            return True
        return False

    cancelled = 0
    for turns in range(AWAITS_MAX):
        was = asyncio.run_coroutine_threadsafe(cancel_after(turns), loop).result(10)
        cancelled += was
        if turns % 10 == 0:
            on_loop.flips(pool[turns : turns + size])
        if not was and turns > 10:
            break
    else:
        pytest.fail("a call was never done")
    assert cancelled > 1
    for step in range(20):
        on_loop.flips(pool[step : step + size])


def test_cancelled_in_a_crowd(on_loop: Client, pool: Bytes) -> None:
    """Half of two hundred are cancelled while they run; the other half is answered with its own bytes."""
    running = [on_loop.start(f"run/{20 + number % 30}/flip", pool[number : number + 3000]) for number in range(200)]
    time.sleep(0.01)
    for future in running[::2]:
        future.cancel()
    for number, future in enumerate(running):
        if number % 2:
            check_flipped(future.result(20), pool[number : number + 3000])


class Interrupt(BaseException):
    """What a signal handler raises in the middle of anything, as KeyboardInterrupt does."""


@pytest.mark.parametrize("size", [100, 100_000])
def test_interrupted_in_the_middle(world: World, pool: Bytes, size: int) -> None:
    """A signal's handler raises inside of a blocking call, a hundred times at different moments."""
    caller = CALLERS["blocking"]()
    main = threading.get_ident()
    armed = False  # no event, whose lock the handler might find held by the thread that it stands in

    def strike(_number: int, _frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interrupt

    before = signal.signal(signal.SIGUSR1, strike)
    interrupted = 0
    try:
        with Client(world, caller) as client:
            for turn in range(100):
                timer = threading.Timer(turn * 2e-4, signal.pthread_kill, (main, signal.SIGUSR1))
                try:
                    armed = True
                    timer.start()
                    client.call("run/10/flip", pool[turn : turn + size])
                    timer.join()
                except Interrupt:
                    interrupted += 1
                finally:  # a call that failed, too: a signal that comes when nobody takes it any more ends the process
                    armed = False
                    timer.join()
                if turn % 10 == 0:
                    client.flips(pool[turn : turn + size])
            assert interrupted >= 20
            for turn in range(20):
                client.flips(pool[turn : turn + size])
    finally:
        signal.signal(signal.SIGUSR1, before)
        caller.close()


def test_a_cancelled_request_leaves_the_queue(on_loop: Client, pool: Bytes) -> None:
    """The node hears of it: a request that would have waited ten seconds is gone from its load at once."""
    future = on_loop.start("later/10000/flip", pool[:100], timeout_s=20)
    deadline_s = time.monotonic() + 5
    while not on_loop.call("echo", pool[:64]).load.outstanding_us:
        assert time.monotonic() < deadline_s
    future.cancel()
    while on_loop.call("echo", pool[:64]).load.outstanding_us:
        assert time.monotonic() < deadline_s, "the node still holds the request"
    with pytest.raises((asyncio.CancelledError, OverspillError, Exception)):
        future.result(1)


def test_somebody_else_cancels(client: Client, pool: Bytes) -> None:
    """`cancel` asks for an early end; the call's own outcome still comes, and unknown ids are nobody's."""
    call = client.request("later/10000/flip", pool[:100])
    future = client.caller.start(client.channel, call, client.world.deadline(20))
    began_s = time.monotonic()
    while not future.done():
        client.channel.cancel(call.id)
        client.channel.cancel(client.next_id())
        time.sleep(0.01)
        assert time.monotonic() < began_s + 5
    with pytest.raises(Cancelled) as ended:
        future.result()
    assert ended.value.fate is Fate.NEVER_RAN
    running = client.request("run/100/flip", pool[:100])
    future = client.caller.start(client.channel, running, client.world.deadline(20))
    time.sleep(0.02)
    client.channel.cancel(running.id)
    check_flipped(future.result(5), pool[:100])
