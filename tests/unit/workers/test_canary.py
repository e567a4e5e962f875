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
