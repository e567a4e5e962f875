"""`consul:` at one real agent that forgets, hangs, goes back in time or is told nonsense: nobody is lost by it."""

from __future__ import annotations

import json
import signal
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from discovery.agent.faults import ConsulError, Fault
from discovery.agent.registry import ConsulRegistry
from discovery.consul import ConsulClient
from discovery.instance import Insert, Readiness
from fabric.errors import RegistryUnavailable
from tests.consul_agents import FAST, Agent, agent, binary, inserted, removed, shared, wait_until, with_times
from tests.consul_network import Switch
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from discovery.instance import Change

__all__ = ["agent", "shared"]
ROOT = Path(__file__).resolve().parent.parent.parent
SOON_S = 20.0
"""For what takes a second or two: the machine may be busy."""
CONNECTIONS_MAX = 200
"""An agent's own default of connections from one address (http_max_conns_per_client)."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Agent]:
    """An agent of the test's own, to be killed and started."""
    binary()
    with Agent(tmp_path, "own") as agent:
        agent.wait_leader()
        yield agent


def restart_empty(agent: Agent) -> None:
    agent.kill()
    agent.forget()
    agent.start()


def test_agent_restarted_without_its_data(own: Agent) -> None:
    """The measured trap: a watch that keeps its old, higher index sees nothing new until its wait is over."""
    agent = own
    for _ in range(5):  # so that the old index is far above the new one
        agent.ask("PUT", "/v1/kv/noise", {"some": "noise"})
    registry = ConsulRegistry(with_times(agent.settings(), wait_s=60.0))
    told = Told()
    with closing(registry.register(instance("old"))) as old, closing(registry.watch(told)) as watch:
        told.wait(lambda _: inserted(told, "old"))
        restart_empty(agent)
        agent.wait_leader()
        began = time.monotonic()
        with closing(registry.register(instance("new"))):
            told.wait(lambda _: inserted(told, "new"), SOON_S)
            took_s = time.monotonic() - began
            wait_until(lambda: {"old", "new"} <= {one.node_id for one in registry.read()}, SOON_S)
            assert not removed(told, "old"), "the empty answer of an agent that just started is no news"
            assert old.statistics().re_registrations >= 1
            assert watch.statistics().index_resets >= 1
            wait_until(lambda: watch.trouble() == "", SOON_S)
    assert took_s < SOON_S


def test_a_node_logs_an_outage_once_and_its_end_once(own: Agent, caplog: pytest.LogCaptureFixture) -> None:
    with closing(ConsulRegistry(own.settings()).register(instance("a"))) as registration:
        own.kill()
        wait_until(lambda: registration.statistics().failures >= 2, SOON_S)
        own.start()
        wait_until(lambda: "takes heartbeats again" in caplog.text, SOON_S)
        beats = registration.statistics().beats
        wait_until(lambda: registration.statistics().beats >= beats + 2, SOON_S)
    assert caplog.text.count("trying again within") >= 1
    assert caplog.text.count("takes heartbeats again") <= caplog.text.count("trying again within")


def test_index_that_goes_back_under_a_live_connection(agent: Agent, own: Agent) -> None:
    """Behind one address another cluster answers: the old index is above all of its own, so a read just waits."""
    for number in range(20):
        agent.ask("PUT", f"/v1/kv/noise{number}", number)
    with Switch(agent.http) as switch:
        registry = ConsulRegistry(with_times(agent.settings(port=switch.port), wait_s=1.0))
        told = Told()
        with closing(registry.register(instance("kept"))), closing(registry.watch(told)) as watch:
            assert inserted(told, "kept")
            before = watch.statistics()
            switch.target = own.http
            with closing(ConsulRegistry(own.settings()).register(instance("new"))):
                told.wait(lambda _: inserted(told, "new"), SOON_S)
                assert not removed(told, "kept")
            after = watch.statistics()
            assert after.index_resets == before.index_resets + 1
            assert after.failures == before.failures


def test_a_restored_snapshot(agent: Agent) -> None:
    """What was entered after the snapshot is gone for a moment; its agent enters it again."""
    registry = ConsulRegistry(agent.settings())
    told = Told()
    with closing(registry.register(instance("kept"))):
        wait_until(lambda: bool(registry.read()), SOON_S)
        snapshot = agent.raw("GET", "/v1/snapshot")
        with closing(registry.register(instance("later"))), closing(registry.watch(told)):
            agent.raw("PUT", "/v1/snapshot", snapshot)
            with closing(registry.register(instance("new"))):
                told.wait(lambda _: inserted(told, "new"), SOON_S)
            assert not removed(told, "kept")


def test_an_empty_answer_is_held_back_and_then_believed(agent: Agent) -> None:
    registry = ConsulRegistry(agent.settings())
    told = Told()
    registration = registry.register(instance("a"))
    with closing(registration), closing(registry.watch(told)) as watch:
        assert inserted(told, "a")
        registration.close()
        wait_until(lambda: watch.statistics().catalogue.empty_refused > 0, SOON_S)
        assert not removed(told, "a")
        told.wait(lambda _: removed(told, "a"), SOON_S)


def test_most_of_a_fleet_gone_at_once_needs_a_second_read(agent: Agent) -> None:
    """All beats have stopped, so nobody enters itself again, and the watch is held up until four of five are gone: for
    longer where a busy machine let it see them go one by one."""
    assert any(_second_read(agent, gap_s) for gap_s in (0.5, 2.0, 8.0))


def _second_read(agent: Agent, read_gap_s: float) -> bool:
    slow = ConsulRegistry(with_times(agent.settings(), heartbeat_s=60.0, ttl_s=600.0))
    watching = ConsulRegistry(with_times(agent.settings(), read_gap_s=read_gap_s))
    registrations = [slow.register(instance(f"n{number}")) for number in range(5)]
    told = Told()
    try:
        with closing(watching.watch(told)) as watch:
            for number in range(4):
                agent.ask("PUT", f"/v1/agent/service/deregister/n{number}")
            told.wait(lambda _: all(removed(told, f"n{number}") for number in range(4)), SOON_S + 2 * read_gap_s)
            assert not removed(told, "n4")
            return watch.statistics().catalogue.shrinks_refused >= 1
    finally:
        for one in registrations:
            one.close()


def test_a_hung_agent_holds_nobody_up(agent: Agent) -> None:
    settings = with_times(agent.settings(), answer_s=0.5, wait_s=1.0)
    registry = ConsulRegistry(settings)
    told = Told()
    with closing(registry.watch(told)) as watch, closing(registry.register(instance("a"))) as registration:
        told.wait(lambda _: inserted(told, "a"))
        agent.signal(signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(RegistryUnavailable, match="in time"):
                registry.read()
            with pytest.raises(RegistryUnavailable):
                registration.update(instance("a", readiness=Readiness.DEGRADED))
            assert time.monotonic() - began < SOON_S
            wait_until(lambda: "stale" in watch.trouble(), SOON_S)
        finally:
            agent.signal(signal.SIGCONT)
        wait_until(lambda: not watch.trouble(), SOON_S)
        assert watch.age_s() < SOON_S
        assert not removed(told, "a")


def test_ending_while_the_agent_hangs_is_quick(agent: Agent) -> None:
    registry = ConsulRegistry(agent.settings())
    watch, registration = registry.watch(Told()), registry.register(instance("a"))
    agent.signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        watch.close()
        registration.close()
        assert time.monotonic() - began < 6.0, "Presence waits for three seconds, then leaves it to the time to live"
    finally:
        agent.signal(signal.SIGCONT)


def test_cold_start_from_the_last_good_list(own: Agent, tmp_path: Path) -> None:
    agent = own
    settings = replace(agent.settings(), last_good=str(tmp_path / "made" / "list.json"))
    registry = ConsulRegistry(settings)
    with closing(registry.register(instance("a"))), closing(registry.watch(Told())):
        pass
    assert json.loads((tmp_path / "made" / "list.json").read_text())["instances"][0]["node_id"] == "a"
    agent.kill()
    told = Told()
    with closing(registry.watch(told)) as watch:
        assert told.changes == [Insert(instance("a"))]
        assert watch.statistics().from_file
        assert "stale" in watch.trouble()
        assert watch.age_s() >= 0.0
        agent.start()
        agent.wait_leader()
        with closing(registry.register(instance("b"))):
            told.wait(lambda _: inserted(told, "b"), SOON_S)
        assert not watch.statistics().from_file
        assert not watch.trouble()


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b'{"format": 2}', b'{"format": 1, "instances": [{}]}'])
def test_a_broken_list_is_no_list(agent: Agent, tmp_path: Path, content: bytes | None) -> None:
    del agent

    def never(changes: tuple[Change, ...]) -> None:
        raise AssertionError(changes)

    path = tmp_path / "list.json"
    if content is not None:
        path.write_bytes(content)
    nobody = ConsulRegistry(f"http://127.0.0.1:1?last_good={path}")
    with pytest.raises(RegistryUnavailable, match="start a Consul agent"):
        nobody.watch(never)


def test_more_than_200_connections(own: Agent) -> None:
    """The agent cuts or refuses those above its limit. The heartbeat, which has its connection already, goes on."""
    registry = ConsulRegistry(with_times(own.settings(times=FAST), answer_s=2.0))
    faults: set[Fault] = set()
    with closing(registry.register(instance("a"))) as registration:
        clients = [ConsulClient(registry.settings) for _ in range(CONNECTIONS_MAX + 10)]
        answered = 0
        try:
            for client in clients:
                try:
                    client.get("/v1/status/leader")
                    answered += 1
                except ConsulError as error:
                    faults.add(error.fault)
            assert faults, "the limit was not reached"
            assert faults <= {Fault.TOO_MANY, Fault.RESET}
            assert answered <= CONNECTIONS_MAX
            assert all("200" in fault.value for fault in faults), "the sentence names the limit"
            beats = registration.statistics().beats
            wait_until(lambda: registration.statistics().beats > beats + 3, SOON_S)
        finally:
            for client in clients:
                client.close()
        told = Told()

        def watched() -> bool:
            with suppress(RegistryUnavailable):  # the agent counts closed connections for a moment
                registry.watch(told).close()
                return True
            return False

        wait_until(watched, SOON_S)
        assert inserted(told, "a"), "with fewer connections all is as before"
