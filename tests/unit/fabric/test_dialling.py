"""Waits for peers that may never answer: one word ends those that are, and those that come later."""

from __future__ import annotations

from fabric.dialling import Dialling


def test_giving_up_ends_what_waits_and_what_comes_later() -> None:
    dialling, ended = Dialling(), []
    with dialling.waiting(lambda: ended.append("over before")):
        pass
    with dialling.waiting(lambda: ended.append("first")), dialling.waiting(lambda: ended.append("second")):
        assert ended == []
        dialling.give_up()
        assert ended == ["first", "second"]
        dialling.give_up()
    assert ended == ["first", "second", "first", "second"], "to end a wait twice is harmless, to miss one is not"
    with dialling.waiting(lambda: ended.append("late")):
        assert ended[-1] == "late"
    assert len(ended) == 5
