"""A session's line at the port: one call at a time, each ended once."""

from __future__ import annotations

from fabric.rpc_fallback.session_line import SessionLine


class Sent:
    """What a call was sent: None ends it."""

    def __init__(self) -> None:
        self.words: list[bytes | None] = []

    def __call__(self, word: bytes | None) -> None:
        self.words.append(word)


def test_a_newer_call_ends_the_one_before() -> None:
    line, calls = SessionLine(), [Sent() for _ in range(50)]
    for call in calls:
        line.hold(call)
    assert [call.words for call in calls[:-1]] == [[None]] * 49
    assert calls[-1].words == []
    assert not line.let_go(calls[3]), "we ended that one"
    assert line.let_go(calls[-1])
    assert not line.let_go(calls[-1])
    line.end()
    assert calls[-1].words == [], "a call that is over is told nothing"


def test_the_end_is_for_good() -> None:
    line, before, after = SessionLine(), Sent(), Sent()
    line.hold(before)
    line.end()
    line.end()
    assert before.words == [None]
    assert not line.let_go(before)
    line.hold(after)
    assert after.words == [None]
