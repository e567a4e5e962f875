"""A call of the main thread that the loop goes through: its outcome comes back, and an interrupt cancels it whole."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from fabric.deadline import Deadline
from fabric.errors import DeadlineExceeded, Unavailable
from fabric.rdma import handed
from fabric.rdma.handed import hand_over

if TYPE_CHECKING:
    from collections.abc import Iterator


class Interrupt(BaseException):
    """What a signal's handler raises."""


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    thread = threading.Thread(target=made.run_forever, name="handed-loop")
    thread.start()
    yield made
    made.call_soon_threadsafe(made.stop)
    thread.join(10)
    made.close()


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(seconds, time.monotonic())


def test_the_outcome_comes_back_from_the_loops_thread(loop: asyncio.AbstractEventLoop) -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        return threading.current_thread().name

    async def fail() -> str:
        raise Unavailable("no node is there; start one")

    assert hand_over(work, soon(), loop) == "handed-loop"
    with pytest.raises(Unavailable, match="no node is there"):
        hand_over(fail, soon(), loop)


def test_what_a_handler_raises_cancels_the_call(loop: asyncio.AbstractEventLoop) -> None:
    main, cancelled = threading.get_ident(), threading.Event()

    def strike(_number: int, _frame: object) -> None:
        raise Interrupt

    async def work() -> None:
        signal.pthread_kill(main, signal.SIGUSR1)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    before = signal.signal(signal.SIGUSR1, strike)
    try:
        with pytest.raises(Interrupt):
            hand_over(work, soon(), loop)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert cancelled.wait(10)


def test_a_loop_that_stands_still_is_not_waited_for(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handed, "LATE_S", 0.0)
    stands, begun = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()

    loop.call_soon_threadsafe(stands.wait)
    with pytest.raises(DeadlineExceeded, match="stands still"):
        hand_over(work, soon(0.01), loop)
    stands.set()
    assert not begun.wait(0.05), "what nobody waits for is not begun"
