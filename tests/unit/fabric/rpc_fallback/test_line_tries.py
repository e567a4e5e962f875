"""When a session's line is opened again."""

from __future__ import annotations

from fabric.rpc_fallback.line_tries import AGAIN_MAX_S, AGAIN_S, STEADY_S, LineTries


def test_the_first_is_opened_at_once_and_the_next_one_too() -> None:
    tries = LineTries()
    assert tries.due(5.0)
    tries.began(5.0)
    tries.ended(5.5, known=True)
    assert tries.due(5.5), "a connection that was cut once is no reason to be blind"


def test_a_path_that_cuts_every_line_is_tried_ever_more_rarely() -> None:
    tries, now, pauses = LineTries(), 0.0, []
    for _ in range(12):
        began = now
        while not tries.due(now):
            now += 0.5
        pauses.append(now - began)
        tries.began(now)
        tries.ended(now, known=True)
    assert pauses[:4] == [0.0, 0.0, AGAIN_S, 2 * AGAIN_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == AGAIN_MAX_S


def test_a_long_life_is_forgiven_at_once() -> None:
    tries = LineTries()
    for now in (0.0, 0.1, 0.2, 0.3):
        tries.began(now)
        tries.ended(now, known=True)
    tries.began(10.0)
    tries.ended(10.0 + STEADY_S, known=True)
    assert tries.due(10.0 + STEADY_S)


def test_a_port_without_the_method_is_never_asked_again() -> None:
    tries = LineTries()
    tries.began(0.0)
    tries.ended(0.0, known=False)
    assert not tries.due(1e9)
