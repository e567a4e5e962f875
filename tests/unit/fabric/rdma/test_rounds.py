"""Who takes completions: threads that wait and a loop take turns, and whoever waits is woken by what it waits for."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import deque
from random import Random
from threading import Thread, get_ident
from typing import TYPE_CHECKING, Any, cast

import pytest

from fabric.rdma import rounds as module
from fabric.rdma.bell import Bell
from fabric.rdma.rounds import Rounds

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from fabric.rdma.device import Device

pytestmark = pytest.mark.skipif(
    not str(module.__file__).endswith(".py"), reason="compiled modules take no queue of a test's"
)
GIVE_UP_S = 20.0


class _Events:
    """A channel of events, without a device. `left` and taken ones stay readable until they are read."""

    def __init__(self, _device: object = None) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
        self._left = 0

    def take(self, _queue: object) -> bool:
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        self._left += 1

    def catch_up(self, queue: object) -> None:
        while self._left:
            self._left -= 1
            self.take(queue)

    def acknowledge(self, _queue: object) -> None:
        pass

    def close(self) -> None:
        os.close(self.fd)


class _Queue:
    """A completion queue: the first that comes while it is armed makes an event."""

    def __init__(self, _device: object, events: _Events, _depth: int) -> None:
        self._events = events
        self._done: deque[Any] = deque()
        self._armed: deque[None] = deque(maxlen=1)

    def arm(self) -> None:
        self._armed.append(None)

    def poll(self, count: int) -> list[Any]:
        return [self._done.popleft() for _ in range(min(count, len(self._done)))]

    def put(self, done: Any) -> None:
        self._done.append(done)
        try:
            self._armed.pop()
        except IndexError:
            return
        os.eventfd_write(self._events.fd, 1)

    def close(self) -> None:
        pass


class _Loop:
    """What a loop does with it, in whatever thread."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._soon: deque[Callable[[], None]] = deque()
        self._poll = select.poll()
        self._poll.register(rounds.fd, select.POLLIN)

    def call_soon(self, action: Callable[..., None], *arguments: Any) -> None:
        self._soon.append(lambda: action(*arguments))

    def turn(self, wait_ms: int) -> bool:
        """One turn; whether there was anything to do."""
        woken = bool(self._poll.poll(0 if self._soon else wait_ms))
        found = len(self._soon)
        for _ in range(found):
            self._soon.popleft()()
        if woken:
            self._rounds.readable(cast("asyncio.AbstractEventLoop", self))
        return woken or found > 0


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads change at every few steps."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _made(monkeypatch: pytest.MonkeyPatch, hand_out: Callable[[list[Any]], None], spin_us: int = 0) -> Rounds:
    monkeypatch.setattr(module, "Events", _Events)
    monkeypatch.setattr(module, "Completions", _Queue)
    return Rounds(cast("Device", None), 64, hand_out, lambda: False, lambda _: None, spin_us)


def test_a_loop_that_is_poked_before_the_turn_is_over_looks_again_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[Any] = []
    rounds = _made(monkeypatch, taken.extend)
    loop, queue = _Loop(rounds), cast("Any", rounds.completions)
    assert rounds._begun()  # as a thread has it that opens what it left shut and unarmed
    rounds._gate.shut()
    rounds._armed = False
    queue._armed.clear()
    queue.put("answer")
    rounds._gate.open(poked=True)
    assert loop.turn(0)
    assert not taken
    assert not loop.turn(0), "it waits for the turn"
    rounds._ended()
    assert loop.turn(0), "nobody else would look"
    assert taken == ["answer"]
    rounds.close()


def test_a_turn_that_ends_while_all_is_closed_wakes_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = _made(monkeypatch, lambda _: None)
    gate = rounds._gate
    gate.wait()
    rounds.close()
    gate.waited_for()  # whoever had the turn before saw that the loop waits, and says so only now


@pytest.mark.parametrize("spin_us", [0, 50])
@pytest.mark.usefixtures("hurried")
def test_nobody_waits_for_what_nobody_takes(monkeypatch: pytest.MonkeyPatch, spin_us: int) -> None:
    """Threads lead, wait beside who leads, or wait as coroutines do, without anybody who looks now and then."""
    bells: dict[int, Bell] = {}
    done: deque[int] = deque()
    errors: list[str] = []

    def hand_out(found: list[int]) -> None:
        for number in found:
            done.append(number)
            bells[number].ring()

    rounds = _made(monkeypatch, hand_out, spin_us)
    queue, ended = cast("Any", rounds.completions), False

    def calls(seed: int) -> None:
        dice = Random(seed)
        for each in range(150):
            number, bell = seed * 1000 + each, Bell()
            bells[number] = bell
            if dice.random() < 0.5:
                queue.put(number)
                posted = None
            else:
                posted = Thread(target=queue.put, args=(number,))
                posted.start()
            end_s = time.monotonic() + GIVE_UP_S
            while number not in done and time.monotonic() < end_s:
                if dice.random() < 0.3:  # as a coroutine, whose loop goes on
                    rounds.waits(bell)
                    while not bell.rung and time.monotonic() < end_s:
                        time.sleep(0)
                    rounds.waits_no_more(bell)
                    bell.rung = False
                else:
                    bell.wait(end_s, rounds)
            if number not in done:
                errors.append(f"{number} was never taken, by thread {get_ident()}")
            if posted is not None:
                posted.join()

    def loops() -> None:
        loop = _Loop(rounds)
        while not ended:
            loop.turn(10)

    watching = Thread(target=loops)
    watching.start()
    calling = [Thread(target=calls, args=(seed,)) for seed in range(3)]
    for thread in calling:
        thread.start()
    for thread in calling:
        thread.join()
    ended = True
    watching.join()
    rounds.close()
    assert not errors
