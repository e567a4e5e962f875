"""What looks at an executor tell: hung runs, stops, silence."""

from __future__ import annotations

import pytest

from workers import vitals
from workers.vitals import Vitals, Watch, hang_at_s


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


def test_what_belongs_to_no_request_may_take_some_seconds() -> None:
    late_s = 10.0 + vitals.ASIDE_MAX_S
    assert not vitals.hangs_aside(0, late_s)
    assert not vitals.hangs_aside(10_000_000_000, late_s - 0.1)
    assert vitals.hangs_aside(10_000_000_000, late_s)


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
    late = vitals.HEARTBEAT_LOST_S + 1.0
    assert not watch.look(Vitals(1, stopped=False, busy=False), 0.0)
    assert not watch.look(Vitals(1, stopped=False, busy=True), late)
    assert not watch.look(Vitals(1, stopped=False, busy=False), late + 1.0)
    assert "no sign of life" in watch.look(Vitals(1, stopped=False, busy=False), 2 * late)
