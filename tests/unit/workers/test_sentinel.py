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
    Vitals,
    Watch,
    hang_at_s,
)

E, S, C = ExecutorEvent, ExecutorState, Command


def ready_machine(now: float = 0.0) -> ExecutorMachine:
    machine = ExecutorMachine()
    for event in (E.START_ASKED, E.PROCESS_SPOKE, E.MODELS_WARM):
        machine.handle(event, now)
    return machine


def crash(machine: ExecutorMachine, now: float) -> float:
    """One death of a ready executor and its return; gives the pause between them."""
    assert machine.handle(E.PROCESS_REAPED, now) == (C.SHUT, C.FENCE, C.WAIT)
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
    assert machine.handle(E.PROCESS_REAPED, 2) == (C.FENCE, C.WAIT)


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
        pauses.append(machine.backoff_s)
        machine.handle(E.BACKOFF_OVER, 1000.0)
    assert pauses == [0.0, 0.2, 0.4, 0.8]


def test_an_illegal_edge_tells_the_story_and_changes_nothing() -> None:
    machine = ready_machine()
    with pytest.raises(IllegalTransition, match="models warm"):
        machine.handle(E.BACKOFF_OVER, 1)
    assert machine.state is S.READY


@pytest.mark.parametrize(
    ("deadline_s", "slowest_us", "limit_s", "expected_s"),
    [
        (10.0, 1000, None, 10.0),  # the caller's deadline
        (1.001, 1000, None, 1.05),  # a tiny one: the floor
        (1.001, 100_000, None, 1.4),  # a slow model: four times its slowest run
        (1.001, 0, None, 2.0),  # never seen to run: a second
        (10.0, 100_000, 0.2, 1.2),  # the model's own limit, alone
    ],
)
def test_when_a_run_counts_as_hung(
    deadline_s: float, slowest_us: int, limit_s: float | None, expected_s: float
) -> None:
    assert hang_at_s(1.0, deadline_s, slowest_us, limit_s) == pytest.approx(expected_s)


def test_a_stop_is_told_after_two_looks_apart() -> None:
    watch = Watch(0.0)
    assert not watch.look(Vitals(1, stopped=True, busy=True), 1.0)
    assert not watch.look(Vitals(1, stopped=True, busy=True), 1.1)
    assert "stopped" in watch.look(Vitals(1, stopped=True, busy=True), 1.3)


def test_a_short_stop_is_no_fault() -> None:
    watch = Watch(0.0)
    assert not watch.look(Vitals(1, stopped=True, busy=False), 1.0)
    assert not watch.look(Vitals(2, stopped=False, busy=False), 1.15)
    assert not watch.look(Vitals(3, stopped=True, busy=False), 1.3)


def test_silence_counts_only_while_idle() -> None:
    watch = Watch(0.0)
    late = sentinel.HEARTBEAT_LOST_S + 1.0
    assert not watch.look(Vitals(1, stopped=False, busy=False), 0.0)
    assert not watch.look(Vitals(1, stopped=False, busy=True), late)
    assert not watch.look(Vitals(1, stopped=False, busy=False), late + 1.0)
    assert "no sign of life" in watch.look(Vitals(1, stopped=False, busy=False), 2 * late)


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
