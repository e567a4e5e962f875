"""When a child that does not answer is replaced."""

from __future__ import annotations

from workers.beats import Beat, Beats


def test_who_answers_is_asked_again_at_each_beat() -> None:
    beats = Beats(3)
    for _ in range(100):
        assert beats.beat() is Beat.ASK
        beats.heard()


def test_who_is_late_is_waited_for() -> None:
    beats = Beats(3)
    assert [beats.beat() for _ in range(3)] == [Beat.ASK, Beat.WAIT, Beat.WAIT]
    beats.heard()
    assert [beats.beat() for _ in range(3)] == [Beat.ASK, Beat.WAIT, Beat.WAIT]


def test_who_says_nothing_is_replaced() -> None:
    beats = Beats(3)
    assert [beats.beat() for _ in range(4)][-1] is Beat.REPLACE


def test_an_answer_that_nobody_asked_for_harms_nothing() -> None:
    beats = Beats(2)
    beats.heard()
    beats.heard()
    assert beats.beat() is Beat.ASK
