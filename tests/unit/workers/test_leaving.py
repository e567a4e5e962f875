"""A draining node goes when its work is done and nobody asks any more, or after a bound; at once if nobody ever did."""

from __future__ import annotations

from workers.leaving import QUIET_S, STAY_MAX_S, Leaving

DRAIN_S = 20.0


def test_without_callers_it_goes_as_soon_as_it_is_idle() -> None:
    leaving = Leaving(5.0, DRAIN_S, refused=0)
    assert not leaving.may_go(5.0, idle=False, callers=False, refused=0)
    assert leaving.may_go(5.0, idle=True, callers=False, refused=0)


def test_it_stays_until_its_callers_are_quiet() -> None:
    leaving = Leaving(5.0, DRAIN_S, refused=0)
    assert not leaving.may_go(5.2, idle=True, callers=True, refused=0)
    assert not leaving.may_go(5.25, idle=True, callers=True, refused=1), "somebody has not read of it yet"
    assert not leaving.may_go(5.25 + QUIET_S / 2, idle=True, callers=True, refused=1)
    assert leaving.may_go(5.25 + QUIET_S, idle=True, callers=True, refused=1)


def test_callers_that_never_learn_do_not_hold_it_for_ever() -> None:
    leaving = Leaving(5.0, DRAIN_S, refused=0)
    for step in range(100):
        now_s = 5.0 + step * STAY_MAX_S / 100
        assert not leaving.may_go(now_s, idle=True, callers=True, refused=step + 1)
    assert leaving.may_go(5.0 + STAY_MAX_S, idle=True, callers=True, refused=1000)


def test_work_holds_it_whatever_the_callers_do() -> None:
    leaving = Leaving(5.0, DRAIN_S, refused=0)
    assert not leaving.may_go(100.0, idle=False, callers=True, refused=0)
    assert not leaving.is_late(5.0 + DRAIN_S - 0.1)
    assert leaving.is_late(5.0 + DRAIN_S)


def test_a_node_that_may_not_stay_does_not() -> None:
    leaving = Leaving(5.0, 0.0, refused=0)
    assert leaving.may_go(5.0, idle=True, callers=True, refused=0)
