"""One timer for all that was begun without a coroutine: each is told in its time that it is late, or a look later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fabric.local.exchange import Places
from fabric.local.later import LOOK_S, Alarm, Later
from fabric.memory.arena import Arena

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY: Any = None  # no loop: nothing of it is used


class Handle:
    """What a loop gives for a timer."""

    def __init__(self) -> None:
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """The part of a loop that keeps time; `set` holds what is not cancelled."""

    def __init__(self) -> None:
        self.now = 0.0
        self._set: list[tuple[float, Handle, Callable[..., object], tuple[object, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, at_s: float, action: Callable[..., object], *words: object) -> Handle:
        handle = Handle()
        self._set.append((at_s, handle, action, words))
        return handle

    @property
    def set(self) -> list[float]:
        return sorted(at_s for at_s, handle, _, _ in self._set if not handle.cancelled)

    def turn(self, to_s: float) -> None:
        self.now = to_s
        due = [one for one in self._set if one[0] <= to_s]
        self._set = [one for one in self._set if one[0] > to_s]
        for _, handle, action, words in due:
            if not handle.cancelled:
                action(*words)


def test_each_is_late_in_its_time_by_one_timer() -> None:
    clock: Any = Clock()
    waiting: dict[tuple[int, int], Later] = {}
    arena = Arena.create(1 << 16)
    places = Places(arena)
    told: list[int] = []

    def late(key: tuple[int, int], final: Later) -> None:
        del waiting[key]
        final.set_exception(TimeoutError())

    alarm = Alarm(waiting, late)

    def begin(number: int, budget_us: int) -> None:
        final = Later(NOBODY, lambda _: told.append(number), budget_us, b"", places)
        waiting[1, number] = final
        alarm.begun(clock)
        assert len(clock.set) == 1

    for number, budget_s in enumerate([5, 3, 9, 3]):
        begin(number, budget_s * 1_000_000)
    assert clock.set == [LOOK_S]
    clock.turn(LOOK_S)  # those that are new get their time
    assert clock.set == [3.0 + LOOK_S]
    clock.turn(1.0)
    begin(4, 7_000_000)
    assert clock.set == [1.0 + LOOK_S], "a new one is looked at soon"
    clock.turn(1.0 + LOOK_S)
    assert told == []
    clock.turn(3.0 + LOOK_S)
    assert told == [1, 3]
    assert clock.set == [5.0 + LOOK_S]
    waiting.pop((1, 0)).set_result(b"in time")
    clock.turn(5.0 + LOOK_S)
    assert told == [1, 3, 0]
    assert clock.set == [8.0 + LOOK_S]
    clock.turn(8.0 + LOOK_S)
    assert told == [1, 3, 0, 4]
    clock.turn(20.0)
    assert told == [1, 3, 0, 4, 2]
    assert clock.set == []
    arena.retire()
    arena.close_fd()


def test_an_alarm_that_is_cancelled_rings_no_more_and_may_be_set_again() -> None:
    clock: Any = Clock()
    alarm = Alarm({}, lambda _, __: None)
    alarm.begun(clock)
    alarm.end()
    assert clock.set == []
    clock.turn(8.0)
    alarm.begun(clock)
    assert clock.set == [8.0 + LOOK_S]
