"""When an idle executor is asked, and when its silence counts."""

from __future__ import annotations

from workers.canary import ANSWER_S, EVERY_S, Canary


def test_it_asks_once_and_again_after_the_answer() -> None:
    canary = Canary(100.0)
    assert not canary.is_due(100.0 + EVERY_S - 0.1, idle=True)
    assert canary.is_due(100.0 + EVERY_S, idle=True)
    assert not canary.is_due(200.0, idle=True)
    canary.answered(200.0)
    assert not canary.is_due(200.0 + EVERY_S - 0.1, idle=True)
    assert canary.is_due(200.0 + EVERY_S, idle=True)


def test_work_comes_first_and_counts_as_an_answer_soon_to_come() -> None:
    canary = Canary(0.0)
    assert not canary.is_due(50.0, idle=False)
    assert not canary.is_due(50.0 + EVERY_S - 0.1, idle=True)
    assert canary.is_due(50.0 + EVERY_S, idle=True)
    assert not canary.is_late(1000.0, idle=False)


def test_silence_is_late_after_its_time() -> None:
    canary = Canary(0.0)
    assert not canary.is_late(1000.0, idle=True)
    assert canary.is_due(EVERY_S, idle=True)
    assert not canary.is_late(EVERY_S + ANSWER_S - 0.1, idle=True)
    assert canary.is_late(EVERY_S + ANSWER_S, idle=True)


def test_ten_minutes_of_a_full_card_meet_no_question_and_no_false_alarm() -> None:
    """R25: the canary yields to work, and is a ten-thousandth of an idle card's time at most (20 us each 10 s)."""
    canary, asked = Canary(0.0), 0
    for look in range(12_000):  # each 50 ms, as a node looks at an executor that has work
        now = look * 0.05
        busy = now % 15.0 < 14.9  # a tenth of a second between two crowds
        assert not canary.is_late(now, idle=not busy)
        asked += canary.is_due(now, idle=not busy)
    assert asked == 0
    for look in range(4_000):  # each 150 ms, as at one that has none
        now = 600.0 + look * 0.15
        if canary.is_due(now, idle=True):
            asked += 1
            canary.answered(now + 0.001)
    assert asked <= 600.0 / EVERY_S
