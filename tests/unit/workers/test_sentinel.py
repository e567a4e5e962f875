"""The life of executors by the table, with a clock that the test turns."""

from __future__ import annotations

import pytest

from fabric.errors import IllegalTransition, PoisonRequest
from workers import sentinel
from workers.sentinel import (
    TABLE,
    Command,
    ExecutorEvent,
    ExecutorMachine,
    ExecutorState,
    Suspects,
)

E, S, C = ExecutorEvent, ExecutorState, Command


def ready_machine(now: float = 0.0, quarantine_faults: int = 0) -> ExecutorMachine:
    machine = ExecutorMachine(quarantine_faults)
    for event in (E.START_ASKED, E.PROCESS_SPOKE, E.MODELS_WARM):
        machine.handle(event, now)
    return machine


def crash(machine: ExecutorMachine, now: float) -> float:
    """One death of a ready executor and its return; gives the pause between them."""
    assert machine.handle(E.PROCESS_REAPED, now) == (C.SHUT, C.FENCE, C.CLEAR)
    assert machine.handle(E.MEMORY_FREE, now) == (C.WAIT,)
    machine.handle(E.BACKOFF_OVER, now)
    machine.handle(E.PROCESS_SPOKE, now)
    machine.handle(E.MODELS_WARM, now)
    return machine.backoff_s


def test_a_life_from_start_to_stop() -> None:
    machine = ExecutorMachine()
    assert machine.handle(E.START_ASKED, 0) == (C.SPAWN,)
    assert machine.generation == 1
    assert machine.handle(E.PROCESS_SPOKE, 1) == ()
    assert machine.handle(E.MODELS_WARM, 2) == (C.OPEN,)
    assert machine.handle(E.STOP_ASKED, 3) == (C.SHUT, C.ASK_EXIT)
    assert machine.handle(E.PROCESS_REAPED, 4) == (C.FENCE,)
    assert machine.state is S.GONE


def test_a_stuck_one_is_killed_and_fenced_only_when_it_is_reaped() -> None:
    machine = ready_machine()
    assert machine.handle(E.FOUND_STUCK, 1) == (C.SHUT, C.KILL)
    assert machine.handle(E.FOUND_STUCK, 1) == ()
    assert machine.handle(E.PROCESS_REAPED, 2) == (C.FENCE, C.CLEAR)


def test_fencing_never_comes_before_the_process_is_reaped() -> None:
    for edges in TABLE.values():
        for event, (_, commands) in edges.items():
            assert (C.FENCE in commands) <= (event is E.PROCESS_REAPED)


def test_every_process_that_is_spawned_can_be_reaped_and_stopped() -> None:
    for state in (S.STARTING, S.WARMING, S.READY, S.FENCING, S.STOPPING):
        assert E.PROCESS_REAPED in TABLE[state]
        assert E.FOUND_STUCK in TABLE[state]
    for state in S:
        assert E.STOP_ASKED in TABLE[state]


def test_crash_loops_slow_down_up_to_a_cap() -> None:
    machine = ready_machine()
    pauses = [crash(machine, 1.0) for _ in range(10)]
    assert pauses[:4] == [0.0, 0.2, 0.4, 0.8]
    assert pauses[-1] == sentinel.BACKOFF_MAX_S
    assert pauses == sorted(pauses)


def test_what_has_worked_on_a_device_is_followed_at_once_until_its_quarantine() -> None:
    machine = ready_machine(quarantine_faults=5)
    assert [crash(machine, now) for now in (1.0, 2.0, 3.0, 4.0)] == [0.0] * 4
    machine.handle(E.PROCESS_REAPED, 5.0)
    machine.handle(E.MEMORY_FREE, 5.0)
    assert machine.quarantined


def test_what_never_worked_on_a_device_slows_down_as_elsewhere() -> None:
    machine = ready_machine(quarantine_faults=9)
    assert [crash(machine, now) for now in range(1, 180, 20)] == [0.0] * 9
    pauses = []
    for now in (182.0, 183.0, 184.0):
        machine.handle(E.PROCESS_REAPED, now)
        if machine.state is S.CLEARING:
            machine.handle(E.MEMORY_FREE, now)
        pauses.append(machine.backoff_s)
        machine.handle(E.BACKOFF_OVER, now)
    assert pauses == [0.0, 0.2, 0.4], "however many had worked before"


def test_a_stable_life_ends_the_count() -> None:
    machine = ready_machine()
    for _ in range(5):
        crash(machine, 1.0)
    assert crash(machine, 1.0 + sentinel.STABLE_S) == 0.0


def test_an_executor_that_never_gets_ready_slows_down_too() -> None:
    machine = ExecutorMachine()
    machine.handle(E.START_ASKED, 0)
    pauses = []
    for _ in range(4):
        machine.handle(E.PROCESS_REAPED, 1000.0)
        machine.handle(E.MEMORY_FREE, 1000.0)
        pauses.append(machine.backoff_s)
        machine.handle(E.BACKOFF_OVER, 1000.0)
    assert pauses == [0.0, 0.2, 0.4, 0.8]


def test_an_illegal_edge_tells_the_story_and_changes_nothing() -> None:
    machine = ready_machine()
    with pytest.raises(IllegalTransition, match="models warm"):
        machine.handle(E.BACKOFF_OVER, 1)
    assert machine.state is S.READY


def test_two_deaths_make_poison_and_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "SUSPECTS_MAX", 2)
    suspects = Suspects()
    suspects.was_running(1, 5)
    suspects.check(1, 5)
    suspects.was_running(1, 5)
    with pytest.raises(PoisonRequest):
        suspects.check(1, 5)
    suspects.check(1, 6)
    suspects.was_running(2, 1)
    suspects.was_running(2, 2)
    suspects.check(1, 5)  # the oldest was forgotten


def after_deaths(count: int, quarantine_faults: int, every_s: float = 1.0) -> ExecutorMachine:
    machine = ExecutorMachine(quarantine_faults)
    machine.handle(E.START_ASKED, 0)
    for number in range(count):
        now = number * every_s
        machine.handle(E.PROCESS_SPOKE, now)
        machine.handle(E.MODELS_WARM, now)
        crash_only = (E.PROCESS_REAPED, E.MEMORY_FREE)
        for event in (*crash_only, E.BACKOFF_OVER) if number < count - 1 else crash_only:
            machine.handle(event, now)
    return machine


def test_five_deaths_in_a_minute_are_quarantine_and_a_stable_life_ends_it() -> None:
    assert not after_deaths(4, 5).quarantined
    assert not after_deaths(9, 0).quarantined  # a processor never is
    assert not after_deaths(5, 5, every_s=15.1).quarantined
    machine = after_deaths(5, 5)
    assert machine.quarantined
    assert machine.backoff_s == sentinel.QUARANTINE_FIRST_S
    for event in (E.BACKOFF_OVER, E.PROCESS_SPOKE, E.MODELS_WARM):
        machine.handle(event, 40.0)
    assert not machine.quarantined
    now = 40.0 + sentinel.STABLE_S
    machine.handle(E.PROCESS_REAPED, now)
    machine.handle(E.MEMORY_FREE, now)
    assert machine.backoff_s == 0.0


def test_a_second_quarantine_is_longer_up_to_a_cap() -> None:
    machine = after_deaths(5, 5)
    pauses = []
    for _ in range(8):
        for number in range(5):
            for event in (E.BACKOFF_OVER, E.PROCESS_SPOKE, E.MODELS_WARM, E.PROCESS_REAPED, E.MEMORY_FREE):
                machine.handle(event, 1000.0 + number)
        pauses.append(machine.backoff_s)
    assert pauses[0] == 2 * sentinel.QUARANTINE_FIRST_S
    assert pauses[-1] == sentinel.QUARANTINE_MAX_S


def test_a_warm_standby_takes_work_before_the_old_one_is_reaped() -> None:
    machine = ready_machine()
    assert machine.handle(E.WARM_STANDBY, 1.0) == (C.SHUT, C.PART, C.PROMOTE, C.OPEN)
    assert machine.state is S.READY
    assert machine.crashes == 1


def test_a_bare_standby_still_has_to_load() -> None:
    machine = ready_machine()
    assert machine.handle(E.BARE_STANDBY, 1.0) == (C.SHUT, C.PART, C.PROMOTE)
    assert machine.handle(E.MODELS_WARM, 2.0) == (C.OPEN,)


def test_no_standby_follows_the_death_that_means_quarantine() -> None:
    machine = ExecutorMachine(3)
    machine.handle(E.START_ASKED, 0)
    machine.handle(E.PROCESS_SPOKE, 0)
    machine.handle(E.MODELS_WARM, 0)
    for now in (1.0, 2.0):
        assert machine.may_promote(now)
        machine.handle(E.WARM_STANDBY, now)
    assert not machine.may_promote(3.0)
    assert machine.may_promote(1.0 + sentinel.QUARANTINE_WINDOW_S + 1.0)


def test_memory_that_stays_held_bars_the_device_until_it_may_be_good() -> None:
    machine = ready_machine()
    machine.handle(E.PROCESS_REAPED, 1.0)
    assert machine.handle(E.MEMORY_HELD, 11.0) == (C.BAR,)
    assert machine.state is S.BARRED
    assert machine.handle(E.MEMORY_FREE, 12.0) == ()
    assert machine.handle(E.DEVICE_GOOD, 41.0) == (C.WAIT,)


def test_a_bad_device_finishes_what_it_has_and_is_left_alone() -> None:
    machine = ready_machine()
    assert machine.handle(E.DEVICE_BAD, 1.0) == (C.SHUT, C.ASK_EXIT)
    assert machine.handle(E.DEVICE_BAD, 1.1) == ()
    assert machine.handle(E.PROCESS_REAPED, 2.0) == (C.FENCE, C.BAR)
    assert machine.handle(E.STOP_ASKED, 3.0) == ()
    assert machine.state is S.GONE


@pytest.mark.parametrize("state", list(S))
def test_news_of_a_device_are_never_a_bug(state: ExecutorState) -> None:
    for event in (E.DEVICE_BAD, E.DEVICE_GOOD, E.MEMORY_FREE, E.MEMORY_HELD):
        machine = ExecutorMachine()
        machine.state = state
        machine.handle(event, 0.0)


def test_generations_are_never_given_out_twice() -> None:
    machine = ready_machine()
    standby = machine.next_generation()
    machine.handle(E.PROCESS_REAPED, 1.0)
    machine.handle(E.MEMORY_FREE, 1.0)
    machine.handle(E.BACKOFF_OVER, 1.0)
    assert (standby, machine.generation) == (2, 3)
