"""The failover table and what counts beside it: every edge, and random lives of a link."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from fabric.errors import ConfigError, IllegalTransition
from fabric.link import draw
from fabric.link.config import LinkTimes
from fabric.link.machine import Command, LinkMachine
from fabric.link.table import TABLE, Do, Event, Role, State

TIMES = LinkTimes()


def machine(*, preferred: bool = True, fallback: bool = True) -> LinkMachine:
    return LinkMachine(TIMES, Random(1), preferred=preferred, fallback=fallback)


def dos(commands: tuple[Command, ...]) -> list[Do]:
    return [command.do for command in commands]


def live() -> LinkMachine:
    one = machine()
    one.start(0.0)
    one.handle(Event.PREFERRED_OPENED, 0.0)
    one.handle(Event.FALLBACK_OPENED, 0.0)
    assert one.state is State.PREFERRED_LIVE
    return one


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("event", Event)
def test_every_event_has_an_edge_or_raises_and_changes_nothing(state: State, event: Event) -> None:
    one = machine()
    one.state = state
    if event in TABLE[state]:
        one.handle(event, 1e9)
        assert one.state is TABLE[state][event][0] or state is State.STANDBY
        return
    story = one.story
    with pytest.raises(IllegalTransition, match="report this bug"):
        one.handle(event, 1.0)
    assert (one.state, one.story, one.changes) == (state, story, 0)


def test_an_illegal_event_tells_the_story() -> None:
    one = live()
    with pytest.raises(IllegalTransition, match="connecting --preferred opened--> preferred only"):
        one.handle(Event.PREFERRED_OPENED, 1.0)


def test_every_state_but_closed_can_be_left_and_every_one_reached() -> None:
    reached = {target for edges in TABLE.values() for target, _ in edges.values()}
    assert reached == set(State)
    assert {state for state, edges in TABLE.items() if all(target is state for target, _ in edges.values())} == {
        State.CLOSED
    }


def test_signalled_death_uses_the_fallback_first_and_moves_after_the_fence() -> None:
    one = live()
    assert dos(one.handle(Event.PREFERRED_LOST, 1.0)) == [Do.USE_FALLBACK, Do.FENCE_PREFERRED]
    assert dos(one.handle(Event.FENCED, 1.0)) == [Do.MOVE_IN_FLIGHT, Do.SCHEDULE_PROBE]
    assert one.state is State.FALLBACK_LIVE


def test_silence_is_doubted_then_given_up_in_time() -> None:
    one = live()
    now, doubted_at, moved_at = 0.0, 0.0, 0.0
    while one.state is not State.FENCING:
        now += TIMES.ping_s
        commands = one.ping_missed(Role.PREFERRED, now)
        if Do.USE_FALLBACK in dos(commands):
            doubted_at = now
    moved_at = now
    # A loss just after an answer costs one more period before the first ping that can be missed is sent.
    assert doubted_at + TIMES.ping_s <= 0.250
    assert moved_at + TIMES.ping_s <= 0.600


def test_a_stall_costs_no_request_where_there_is_no_other_wire() -> None:
    one = machine(preferred=False)
    one.start(0.0)
    one.handle(Event.FALLBACK_OPENED, 0.0)
    for _ in range(TIMES.last_missed - 1):
        assert one.ping_missed(Role.FALLBACK, 1.0) == ()
    assert Do.FAIL_IN_FLIGHT in dos(one.ping_missed(Role.FALLBACK, 2.0))
    assert one.state is State.DOWN


def test_nobody_is_patient_with_a_silent_node_whose_requests_may_move() -> None:
    for one, opened, role in (
        (machine(preferred=False), Event.FALLBACK_OPENED, Role.FALLBACK),
        (machine(fallback=False), Event.PREFERRED_OPENED, Role.PREFERRED),
    ):
        one.start(0.0)
        one.handle(opened, 0.0)
        for _ in range(TIMES.silent_missed - 1):
            assert Do.USE_NONE not in dos(one.ping_missed(role, 1.0, patient=False))
        assert Do.USE_NONE in dos(one.ping_missed(role, 2.0, patient=False))


def test_a_doubted_wire_recovers_after_good_pings_and_its_hold_down() -> None:
    one = live()
    for _ in range(TIMES.suspect_missed):
        one.ping_missed(Role.PREFERRED, 10.0)
    assert one.state is State.SUSPECT
    for _ in range(TIMES.good_pings - 1):
        assert one.ping_answered(Role.PREFERRED, 10.5) == ()
    (hold,) = one.ping_answered(Role.PREFERRED, 10.5)
    assert (hold.do, hold.delay_s) == (Do.SCHEDULE_HOLD, 5.0)
    assert one.state is State.STANDBY
    (again,) = one.handle(Event.HOLD_OVER, 12.0)
    assert again == Command(Do.SCHEDULE_HOLD, 3.5), "a timer of an earlier hold-down does not end this one"
    assert dos(one.handle(Event.HOLD_OVER, 15.5)) == [Do.USE_PREFERRED]


def test_hold_down_doubles_with_each_flap_and_forgets_after_a_minute() -> None:
    one = live()
    now = 100.0
    holds = []
    for _ in range(6):
        one.handle(Event.PREFERRED_LOST, now)
        one.handle(Event.FENCED, now)
        one.handle(Event.PROBE_DUE, now)
        (hold,) = one.handle(Event.PREFERRED_OPENED, now)
        holds.append(hold.delay_s)
        now += hold.delay_s
        one.handle(Event.HOLD_OVER, now)
    assert holds == [5.0, 10.0, 20.0, 40.0, 60.0, 5.0]


@pytest.mark.parametrize("opens_s", [0.05, 0.5, 0.9])
@pytest.mark.parametrize("period_s", [1.0, 2.0, 6.0])
def test_a_wire_that_flaps_does_not_get_the_requests_back(opens_s: float, period_s: float) -> None:
    """Up and down in turns, for a minute: only one that stayed up for the hold-down is used again, and seldom."""
    one = live()
    changes = [0.0]
    now, hold_at = 0.0, float("inf")
    for _ in range(int(60.0 / period_s)):
        before = one.changes
        one.handle(Event.PREFERRED_LOST, now)
        if one.changes > before:
            changes.append(now)
        one.handle(Event.FENCED, now)
        one.handle(Event.PROBE_DUE, now + period_s / 2)
        for command in one.handle(Event.PREFERRED_OPENED, now + (period_s + opens_s) / 2):
            hold_at = now + (period_s + opens_s) / 2 + command.delay_s
        now += period_s
        if hold_at <= now and one.state is State.STANDBY:
            before = one.changes
            one.handle(Event.HOLD_OVER, hold_at)
            if one.changes > before:
                changes.append(hold_at)
    assert len(changes) == 2, "it left once, and came back in no pause"
    assert one.state is State.STANDBY


def test_back_off_grows_to_its_bound_with_jitter() -> None:
    one = machine()
    one.start(0.0)
    delays = []
    for _ in range(12):
        one.handle(Event.PREFERRED_FAILED, 0.0)
        commands = one.handle(Event.FALLBACK_FAILED, 0.0)
        delays += [command.delay_s for command in commands if command.do is Do.SCHEDULE_PROBE]
        one.handle(Event.PROBE_DUE, 0.0)
    assert all(0.5 * whole <= delay <= whole for delay, whole in zip(delays, (1, 2, 4, 8, 16), strict=False))
    assert 15.0 <= delays[-1] <= 30.0


@pytest.mark.parametrize("opens", [False, True], ids=["it never opens", "it opens and breaks"])
def test_an_hour_of_outage_is_probed_seldom_and_to_its_end(opens: bool) -> None:
    """Whether the preferred wire cannot be opened, or opens each time and breaks before it is trusted."""
    one, now, tries = live(), 10.0, list[float]()
    one.handle(Event.PREFERRED_LOST, now)
    commands = one.handle(Event.FENCED, now)
    while now < 3600.0:
        (now,) = [now + command.delay_s for command in commands if command.do is Do.SCHEDULE_PROBE]
        tries.append(now)
        one.handle(Event.PROBE_DUE, now)
        if opens:
            one.handle(Event.PREFERRED_OPENED, now)
            one.handle(Event.PREFERRED_LOST, now + 0.1)
        commands = one.handle(Event.FENCED if opens else Event.PREFERRED_FAILED, now + 0.1)
    assert max(later - at for at, later in pairwise(tries)) <= TIMES.backoff_max_s + 0.1
    assert max(sum(at <= other < at + 60.0 for other in tries) for at in tries) <= 12, "a storm"
    one.handle(Event.PROBE_DUE, now)
    one.handle(Event.PREFERRED_OPENED, now)
    one.handle(Event.HOLD_OVER, now + TIMES.hold_down_max_s)
    assert one.state is State.PREFERRED_LIVE


@pytest.mark.parametrize(("preferred", "fallback"), [(True, False), (False, True)])
def test_a_link_of_one_wire(preferred: bool, fallback: bool) -> None:
    one = machine(preferred=preferred, fallback=fallback)
    opened, lost = (
        (Event.PREFERRED_OPENED, Event.PREFERRED_LOST) if preferred else (Event.FALLBACK_OPENED, Event.FALLBACK_LOST)
    )
    one.start(0.0)
    commands = one.handle(opened, 0.0)
    assert Do.OPEN_FALLBACK not in dos(commands)
    assert Do.SCHEDULE_PROBE not in dos(commands)
    one.handle(lost, 1.0)
    assert one.state is (State.DOWN if preferred else State.FALLING_BACK)


def test_the_page_of_the_docs_is_drawn_from_the_table() -> None:
    path = Path(draw.__file__).parents[2] / "docs" / "state-machines.md"
    assert path.read_text(encoding="utf-8") == draw.page(), "run `python -m fabric.link.draw > docs/state-machines.md`"


@pytest.mark.parametrize("wrong", [{"suspect_missed": 9}, {"hold_down_s": 0.0}, {"ping_s": 0.0}, {"backoff_s": 31.0}])
def test_wrong_times(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        LinkTimes(**wrong)  # type: ignore[arg-type]
