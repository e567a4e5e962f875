"""`consul:` at a cluster of three servers that are killed, hung, or change their leader: callers keep everybody."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from discovery.agent.registry import ConsulRegistry
from discovery.instance import Insert, Readiness, Remove
from tests.consul_agents import Fleet, binary, wait_until, with_times
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOON_S = 40.0
"""For an election and all that follows; the machine may be busy."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    binary()
    with Fleet(tmp_path) as running:
        yield running


def gone(told: Told) -> list[Remove]:
    return [one for one in told.changes if isinstance(one, Remove)]


def test_all_servers_killed_and_back(fleet: Fleet) -> None:
    """While no server is there nobody is removed, beats arrive, the agent's memory answers with its age, and who enters
    himself is told when they are back."""
    registry = ConsulRegistry(fleet.client.settings())
    told = Told()
    with closing(registry.register(instance("a"))) as registration, closing(registry.watch(told)) as watch:
        told.wait(lambda changes: changes == [Insert(instance("a"))], SOON_S)
        for server in fleet.servers:
            server.kill()
        wait_until(lambda: "stale" in watch.trouble(), SOON_S)
        assert registry.read() == (instance("a"),), "a read outside of the watch falls back on the agent's memory"
        beats, age_s = registration.statistics().beats, watch.age_s()
        with closing(registry.register(instance("b"))):
            wait_until(lambda: registration.statistics().beats > beats + 3, SOON_S)
            wait_until(lambda: watch.age_s() > age_s + 1.0, SOON_S)
            assert told.changes == [Insert(instance("a"))]
            assert watch.statistics().catalogue.failures >= 1
            for server in fleet.servers:
                server.start()
            told.wait(lambda changes: Insert(instance("b")) in changes, SOON_S)
            wait_until(lambda: watch.trouble() == "" and watch.age_s() < SOON_S, SOON_S)
            assert gone(told) == []


def test_all_servers_hang_and_go_on(fleet: Fleet) -> None:
    registry = ConsulRegistry(with_times(fleet.client.settings(), wait_s=2.0))
    told = Told()
    with closing(registry.register(instance("a"))) as registration, closing(registry.watch(told)):
        for server in fleet.servers:
            server.signal(signal.SIGSTOP)
        beats = registration.statistics().beats
        wait_until(lambda: registration.statistics().beats > beats + 5, SOON_S)
        assert registration.statistics().failures == 0
        for server in fleet.servers:
            server.signal(signal.SIGCONT)
        registration.update(instance("a", readiness=Readiness.DEGRADED))
        told.wait(lambda changes: Insert(instance("a", readiness=Readiness.DEGRADED)) in changes, SOON_S)
        assert gone(told) == []


def test_leader_killed(fleet: Fleet) -> None:
    registry = ConsulRegistry(fleet.client.settings())
    told = Told()
    with closing(registry.register(instance("a"))), closing(registry.watch(told)):
        leader = fleet.leader()
        leader.kill()
        with closing(registry.register(instance("b"))):
            told.wait(lambda changes: Insert(instance("b")) in changes, SOON_S)
            assert fleet.leader() is not leader
            leader.start()
            time.sleep(0.5)
            assert gone(told) == []


def test_two_agents_one_node_id_the_later_life_counts(fleet: Fleet) -> None:
    """Each agent holds an entry of its own: Consul lists both lives, and one is told."""
    here, there = ConsulRegistry(fleet.client.settings()), ConsulRegistry(fleet.servers[0].settings())
    told = Told()
    with (
        closing(here.register(instance("a", 1))),
        closing(here.watch(told)),
        closing(there.register(instance("a", 2))),
    ):
        told.wait(lambda changes: Insert(instance("a", 2)) in changes, SOON_S)
        assert told.changes == [Insert(instance("a", 1)), Remove("a", 1), Insert(instance("a", 2))]
        assert here.read() == (instance("a", 2),)


@pytest.mark.long  # agents tell their coordinates every 15 s at most
def test_coordinates_are_a_first_guess_between_agents(fleet: Fleet) -> None:
    """Agents on one host are near: the guess is small, and there is none within one agent or one rack."""
    here, there = ConsulRegistry(fleet.client.settings()), ConsulRegistry(fleet.servers[0].settings())

    def known() -> bool:
        told = fleet.client.ask("GET", "/v1/coordinate/nodes")
        return {"client", "server-0"} <= {one["Node"] for one in told if one["Coord"]["Error"] < 1.5}

    wait_until(known, 60.0)
    told = Told()
    with (
        closing(here.register(instance("same"))),
        closing(there.register(instance("other"))),
        closing(there.register(replace(instance("rack"), rack="r1"))),
    ):
        wait_until(lambda: len(here.read()) == 3, SOON_S)
        watching = ConsulRegistry(replace(here.settings, rack="r1"))
        with closing(watching.watch(told)):
            told.wait(lambda changes: len(changes) == 3, SOON_S)
    guesses = {one.instance.node_id: one.instance.rtt_prior_ms for one in told.changes if isinstance(one, Insert)}
    assert guesses["same"] == 0.0
    assert guesses["rack"] == 0.0
    assert 0.0 < guesses["other"] < 200.0
