"""Ten minutes without Consul, on a clock of the test's own: what is known stays, and its readers come back spread."""

from __future__ import annotations

from random import Random

import pytest

from discovery.agent.follower import Ask, Follower, State
from discovery.agent.tenure import Do, Event, Tenure
from discovery.agent.url import ConsulTimes
from discovery.catalogue import Answered, Catalogue, Failed
from discovery.instance import Insert
from tests.unit.discovery.sample import instance

TIMES = ConsulTimes()
OUTAGE_S = 600.0
FLEET = tuple(instance(f"n{number}") for number in range(20))


def through_outage(seed: int, memory: bool) -> tuple[float, int, Catalogue]:
    """(seconds from Consul's return to the first good read, reads during the outage, the list)."""
    catalogue = Catalogue(TIMES.guards)
    follower = Follower(TIMES, Random(seed), 0.0)
    ask, now, reads = follower.begin(0.0), 0.0, 0
    catalogue.handle(Answered(FLEET), now)
    ask = follower.answered(500, 0.001, now)[-1]  # type: ignore[assignment]
    while True:
        assert isinstance(ask, Ask)
        now += ask.pause_s
        if now >= OUTAGE_S:
            return now - OUTAGE_S, reads, catalogue
        reads += 1
        if memory and follower.state is not State.FOLLOWING:
            changes = catalogue.handle(Answered(FLEET, age_s=now), now)
            ask = follower.answered(500, 0.001, now)[-1]  # type: ignore[assignment]
        else:
            changes = catalogue.handle(Failed("gone"), now)
            ask = follower.failed(now)[-1]  # type: ignore[assignment]
        assert changes == ()


def test_nobody_is_removed_and_the_age_is_told() -> None:
    for memory in (False, True):
        for seed in range(20):
            _, reads, catalogue = through_outage(seed, memory)
            assert len(catalogue.instances) == len(FLEET)
            assert catalogue.age_s(OUTAGE_S) >= OUTAGE_S - TIMES.backoff_max_s, "the age counts from before the outage"
            assert reads < 3 * OUTAGE_S, "no busy loop"


def test_readers_come_back_spread_over_one_interval() -> None:
    late = sorted(through_outage(seed, memory=False)[0] for seed in range(300))
    assert late[-1] <= TIMES.backoff_max_s
    assert late[-1] - late[0] > 0.8 * TIMES.heartbeat_s
    busiest = max(sum(start <= one < start + 0.1 for one in late) for start in (step * 0.1 for step in range(30)))
    assert busiest < 0.2 * len(late), "no tenth of a second takes them all"


def test_entries_come_back_spread_over_one_interval() -> None:
    """All workers lost one agent, which comes back without data: their next beats tell, at times of their own."""
    dues = []
    for seed in range(300):
        tenure = Tenure(TIMES, Random(seed), 0.0)
        now = 0.0
        while now < OUTAGE_S:
            now = tenure.due_s
            if now < OUTAGE_S:
                tenure.beat(now)
                tenure.handle(Event.FAILED, now)
        dues.append(now - OUTAGE_S)
        asked = tenure.beat(now)
        assert asked in {(Do.PASS,), (Do.LOOK,)}
        if asked == (Do.PASS,):
            assert tenure.handle(Event.UNKNOWN, now) == (Do.LOOK,)
        assert tenure.handle(Event.NOBODYS, now) == (Do.ENTER,)
    assert max(dues) <= TIMES.heartbeat_s + 0.1
    assert max(dues) - min(dues) > 0.8 * TIMES.heartbeat_s


def test_a_copy_of_an_old_answer_confirms_nothing() -> None:
    """An agent that lost its servers just after it saw most of the fleet leave says the same again and again."""
    catalogue = Catalogue(TIMES.guards)
    catalogue.handle(Answered(FLEET), 0.0)
    assert catalogue.handle(Answered(FLEET[:3]), 10.0) == ()
    for second in range(1, 300):
        assert catalogue.handle(Answered(FLEET[:3], age_s=float(second)), 10.0 + second) == ()
    assert len(catalogue.handle(Answered(FLEET[:3]), 400.0)) == len(FLEET) - 3


def test_a_doubt_says_when_to_look_again() -> None:
    catalogue = Catalogue(TIMES.guards)
    assert catalogue.look_again_s(0.0) is None
    catalogue.handle(Answered(FLEET), 0.0)
    assert catalogue.look_again_s(0.0) is None
    catalogue.handle(Answered(FLEET[:3]), 1.0)
    assert catalogue.look_again_s(1.4) == pytest.approx(TIMES.guards.confirm_s - 0.4)
    catalogue.handle(Answered(()), 2.0)
    assert catalogue.look_again_s(3.0) == pytest.approx(TIMES.guards.empty_grace_s - 1.0)
    assert catalogue.handle(Answered(FLEET), 3.0) == ()
    assert catalogue.look_again_s(3.0) is None
    assert Insert(FLEET[0]) not in catalogue.handle(Answered(FLEET), 4.0)
