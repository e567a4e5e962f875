"""The two tables of `consul:`: what a watch asks next, and how a node holds its entry."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discovery.agent import follower, tenure
from discovery.agent.follower import Apply, Ask, Follower, Refuse
from discovery.agent.pace import BURST, FullJitter, TokenBucket
from discovery.agent.tenure import Do, Event, Tenure
from discovery.agent.url import ConsulTimes
from fabric.errors import IllegalTransition

TIMES = ConsulTimes()


def following(index: int = 100) -> Follower:
    made = Follower(TIMES, Random(1), 0.0)
    made.begin(0.0)
    made.answered(index, 0.001, 0.0)
    return made


def test_every_state_has_a_way_on_or_is_an_end() -> None:
    for table in (follower.TABLE, tenure.TABLE):
        reached = {edge[0] for edges in table.values() for edge in edges.values()}
        assert reached <= set(table), "an edge leads out of the table"
    assert {state for state, edges in tenure.TABLE.items() if not edges} == {tenure.State.SUPERSEDED}
    assert all(set(edges) >= {follower.Event.ANSWERED, follower.Event.FAILED} for edges in follower.TABLE.values())


def test_it_reads_once_then_follows_the_index() -> None:
    made = Follower(TIMES, Random(1), 0.0)
    assert made.begin(0.0) == Ask(0.0, 0, 0.0)
    apply, ask = made.answered(7, 0.001, 0.0)
    assert apply == Apply()
    assert isinstance(ask, Ask)
    assert made.ask(ask, None) == Ask(0.0, 7, 60.0)


def test_an_index_that_goes_back_starts_again() -> None:
    made = following(100)
    apply, ask = made.answered(12, 0.001, 1.0)
    assert apply == Apply(), "what it says is an answer"
    assert isinstance(ask, Ask)
    assert made.ask(ask, None).index == 0
    assert made.resets == 1


def test_an_index_of_zero_would_not_block() -> None:
    made = following(0)
    assert made.ask(Ask(0.0, 0, 0.0), None).index == 1


def test_a_failure_asks_the_cache_once_then_backs_off_from_index_zero() -> None:
    made = following(100)
    refuse, ask = made.failed(1.0)
    assert (refuse, ask) == (Refuse(), Ask(0.0, 0, 0.0)), "the agent's memory is asked at once"
    apply, later = made.answered(100, 0.001, 1.0)
    assert apply == Apply()
    assert isinstance(later, Ask)
    assert made.state is follower.State.READING
    assert made.ask(later, None).index == 0, "never the old index after a failure"


def test_while_servers_are_gone_waits_grow_to_one_heartbeat() -> None:
    """A blocking read fails at once, the cache answers: that must not become a busy loop."""
    made, waits = following(), []
    for step in range(40):
        now = 1.0 + step
        made.failed(now)
        last = made.answered(100, 0.001, now)[-1]
        assert isinstance(last, Ask)
        waits.append(last.pause_s)
        made.answered(100, 0.001, now)
    assert max(waits) <= TIMES.backoff_max_s
    assert sum(waits[-20:]) / 20 > TIMES.backoff_max_s / 4
    assert following().failed(1.0)[-1] == Ask(0.0, 0, 0.0)


def test_after_a_failure_only_a_blocking_read_proves_that_all_is_well() -> None:
    made = following()
    assert made.proven
    made.failed(1.0)
    made.answered(100, 0.001, 1.0)
    last = made.answered(100, 0.001, 1.0)[-1]
    assert not made.proven, "these came out of the agent's memory"
    assert isinstance(last, Ask)
    assert made.ask(last, None).wait_s == 1.0
    last = made.answered(100, 0.001, 2.0)[-1]
    assert made.proven
    assert isinstance(last, Ask)
    assert made.ask(last, None).wait_s == TIMES.wait_s


def test_a_doubt_shortens_the_wait() -> None:
    assert following().ask(Ask(0.0, 0, 0.0), 1.0).wait_s == pytest.approx(1.01)


@given(st.lists(st.tuples(st.sampled_from(["answer", "fail"]), st.integers(0, 20)), max_size=60))
def test_any_story_ends_in_a_next_read(story: list[tuple[str, int]]) -> None:
    made = Follower(TIMES, Random(3), 0.0)
    made.begin(0.0)
    highest = 0
    for step, (what, index) in enumerate(story):
        commands = made.answered(index, 0.01, float(step)) if what == "answer" else made.failed(float(step))
        asks = [command for command in commands if isinstance(command, Ask)]
        assert len(asks) == 1
        assert asks[0] is commands[-1]
        asked = made.ask(asks[0], None)
        assert asked.pause_s >= 0.0
        highest = index if what == "answer" else highest
        assert asked.index in {0, max(1, highest)}


def test_a_burst_is_free_then_reads_cost_their_share() -> None:
    bucket = TokenBucket(0.02, 0.03, 0.0)
    bucket.cost(0.03)
    assert [bucket.take(0.0) for _ in range(3)] == [0.0, 0.0, pytest.approx(1.0)]
    now, spent = 0.0, 0.0
    for _ in range(100):
        now += bucket.take(now)
        spent += 0.03
    assert spent / now <= 0.0301 + 0.03 * BURST / now


def test_a_short_list_is_read_often() -> None:
    bucket = TokenBucket(0.02, 0.03, 0.0)
    bucket.cost(0.0001)
    waits = [bucket.take(0.0) for _ in range(4)]
    assert waits[2] == pytest.approx(0.02)


def test_jitter_is_full_and_grows() -> None:
    jitter = FullJitter(0.1, 3.0, Random(5))
    many = [jitter.fail() for _ in range(12)]
    assert all(0.0 <= wait <= 3.0 for wait in many)
    jitter.reset()
    assert jitter.fail() <= 0.1


def test_readers_of_the_same_lost_server_come_back_spread() -> None:
    waits = []
    for seed in range(200):
        jitter = FullJitter(TIMES.backoff_first_s, TIMES.backoff_max_s, Random(seed))
        for _ in range(9):
            jitter.fail()
        waits.append(jitter.fail())
    assert max(waits) - min(waits) > 0.9 * TIMES.heartbeat_s
    for start in range(6):
        share = sum(start * 0.5 <= wait < start * 0.5 + 0.5 for wait in waits) / 200
        assert share < 0.3, "no half second takes them all"


def held() -> Tenure:
    return Tenure(TIMES, Random(1), 0.0)


def test_a_beat_passes_and_rests_one_interval() -> None:
    made = held()
    assert 0.8 * TIMES.heartbeat_s <= made.due_s <= TIMES.heartbeat_s
    assert made.beat(made.due_s) == (Do.PASS,)
    assert made.handle(Event.PASSED, 10.0) == ()
    assert 10.0 + 0.8 * TIMES.heartbeat_s <= made.due_s <= 10.0 + TIMES.heartbeat_s


def test_a_forgotten_entry_is_made_again_at_once() -> None:
    made = held()
    assert made.beat(3.0) == (Do.PASS,)
    assert made.handle(Event.UNKNOWN, 3.0) == (Do.LOOK,)
    assert made.handle(Event.NOBODYS, 3.0) == (Do.ENTER,)
    assert made.handle(Event.ENTERED, 3.0) == (Do.PASS,)
    assert made.handle(Event.PASSED, 3.0) == ()
    assert made.reentries == 1


def test_an_agent_that_never_knows_the_check_is_asked_once_a_beat() -> None:
    """Two agents behind one balancer: the check is made at one and renewed at the other."""
    made = held()
    asked, steps = made.beat(3.0), 0
    while asked:
        event = {Do.PASS: Event.UNKNOWN, Do.LOOK: Event.NOBODYS, Do.ENTER: Event.ENTERED}[asked[0]]
        asked, steps = made.handle(event, 3.0), steps + 1
        assert steps < 10, "without end"
    assert 3.0 <= made.due_s <= 3.0 + TIMES.heartbeat_s
    assert made.beat(made.due_s) == (Do.PASS,)


def test_a_new_life_takes_over_for_good() -> None:
    made = held()
    made.beat(3.0)
    made.handle(Event.UNKNOWN, 3.0)
    assert made.handle(Event.OTHERS, 3.0) == (Do.GIVE_WAY,)
    assert made.beat(1e9) == ()
    with pytest.raises(IllegalTransition, match="another life"):
        made.handle(Event.PASSED, 4.0)


def test_the_whole_entry_is_refreshed_now_and_then() -> None:
    made = held()
    assert made.beat(TIMES.refresh_s + 1) == (Do.LOOK,)
    assert made.handle(Event.MINE, 61.0) == (Do.ENTER,)
    assert made.reentries == 0, "nothing was lost"


def test_failures_are_tried_again_within_one_interval_and_spread() -> None:
    dues = []
    for seed in range(50):
        made = Tenure(TIMES, Random(seed), 0.0)
        made.beat(3.0)
        made.handle(Event.FAILED, 3.0)
        dues.append(made.due_s - 3.0)
    assert all(0.0 <= due <= TIMES.heartbeat_s for due in dues)
    assert max(dues) - min(dues) > 0.8 * TIMES.heartbeat_s
