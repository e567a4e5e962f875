"""A node's entry at a real agent: how it comes, what it says, how it is kept, and how it goes."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.agent.diagnosis import TTL_CHECKS_MAX
from discovery.agent.meta import check_id, meta_of, service_id
from discovery.agent.registry import ConsulRegistry
from discovery.instance import Insert, Readiness
from overspill.doctoring import registry_findings
from tests.consul_agents import Agent, agent, inserted, removed, shared, wait_until, with_times
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from discovery.agent.url import ConsulSettings
    from discovery.instance import Instance

__all__ = ["agent", "shared"]
ROOT = Path(__file__).resolve().parent.parent.parent
SOON_S = 20.0
"""For what takes a second or two: the machine may be busy."""


NODE = """
import sys, time
from dataclasses import replace
from discovery.agent.registry import ConsulRegistry
from discovery.agent.url import parse_url
from tests.unit.discovery.sample import instance
settings = parse_url(sys.argv[1])
registration = ConsulRegistry(settings).register(instance(sys.argv[2]))
print("up", flush=True)
if sys.argv[3] == "exit":
    sys.exit()
time.sleep(60)
"""


def url(settings: ConsulSettings) -> str:
    times = settings.times
    return (
        f"{settings.place}?service={settings.service}&last_good=off&heartbeat_s={times.heartbeat_s}"
        f"&ttl_s={times.ttl_s}&propagation_s={times.propagation_s}"
    )


def run_node(settings: ConsulSettings, name: str, how: str) -> subprocess.Popen[bytes]:
    node = subprocess.Popen([sys.executable, "-c", NODE, url(settings), name, how], cwd=ROOT, stdout=subprocess.PIPE)
    assert node.stdout is not None
    assert node.stdout.readline() == b"up\n"
    node.stdout.close()
    return node


def test_a_killed_node_goes_after_its_time_and_a_program_that_ends_at_once(agent: Agent) -> None:
    settings = with_times(agent.settings(), ttl_s=1.0, heartbeat_s=0.2)
    registry = ConsulRegistry(settings)
    told = Told()
    with closing(registry.register(instance("other"))), closing(registry.watch(told)):
        node = run_node(settings, "killed", "stay")
        try:
            told.wait(lambda _: inserted(told, "killed"), SOON_S)
            node.kill()
            told.wait(lambda _: removed(told, "killed"), SOON_S)
        finally:
            node.kill()
            node.wait(5)
        ending = run_node(settings, "ending", "exit")
        assert ending.wait(SOON_S) == 0, "the heartbeat's thread must not keep the program"
        wait_until(lambda: "ending" not in agent.ask("GET", "/v1/agent/services"), SOON_S)


def test_drain_is_told_before_the_entry_goes(agent: Agent) -> None:
    registry = ConsulRegistry(agent.settings())
    told = Told()
    with closing(registry.register(instance("other"))), closing(registry.watch(told)):
        registry.register(instance("a")).close()
        told.wait(lambda _: removed(told, "a"), SOON_S)
    states = [one.instance.readiness for one in told.changes if isinstance(one, Insert) and one.instance.node_id == "a"]
    assert states == [Readiness.READY, Readiness.DRAINING]
    assert set(agent.ask("GET", "/v1/agent/services")) == set()


def test_a_warning_is_degraded_and_heals(agent: Agent) -> None:
    """RDMA is down, RPC works: the node says so, and anybody's dashboard shows a warning."""
    registry = ConsulRegistry(agent.settings())
    told = Told()
    with closing(registry.register(instance("a"))) as registration, closing(registry.watch(told)):
        registration.update(instance("a", readiness=Readiness.DEGRADED))
        told.wait(lambda changes: Insert(instance("a", readiness=Readiness.DEGRADED)) in changes, SOON_S)
        checks = agent.ask("GET", "/v1/health/checks/overspill")
        assert [(check["Status"], check["Output"]) for check in checks] == [("warning", "degraded: see the node's log")]
        registration.update(instance("a"))
        told.wait(lambda changes: changes[-1] == Insert(instance("a")), SOON_S)
        assert len(told.changes) == 3


def test_an_operators_maintenance_drains_and_outlives_the_refresh(agent: Agent) -> None:
    registry = ConsulRegistry(with_times(agent.settings(), refresh_s=0.5))
    told = Told()
    with closing(registry.register(instance("a"))) as registration, closing(registry.watch(told)):
        agent.ask("PUT", "/v1/agent/service/maintenance/a?enable=true&reason=tests")
        told.wait(lambda changes: Insert(instance("a", readiness=Readiness.DRAINING)) in changes, SOON_S)
        beats = registration.statistics().beats
        wait_until(lambda: registration.statistics().beats > beats + 5, SOON_S)
        assert told.changes[-1] == Insert(instance("a", readiness=Readiness.DRAINING))
        agent.ask("PUT", "/v1/agent/service/maintenance/a?enable=false")
        told.wait(lambda changes: changes[-1] == Insert(instance("a")), SOON_S)


def test_entries_of_others_are_skipped(agent: Agent) -> None:
    registry = ConsulRegistry(agent.settings())
    agent.ask("PUT", "/v1/agent/service/register", {"Name": "overspill", "ID": "stranger", "Port": 1})
    agent.ask(
        "PUT", "/v1/agent/service/register", {"Name": "overspill", "ID": "odd", "Meta": {"needs": "1", "epoch": "x"}}
    )
    told = Told()
    with closing(registry.register(instance("a/b with ü"))), closing(registry.watch(told)) as watch:
        assert told.changes == [Insert(instance("a/b with ü"))]
        assert watch.statistics().unreadable == 2
    assert set(agent.ask("GET", "/v1/agent/services")) == {"stranger", "odd"}, (
        "an id with a slash can be taken out again"
    )


def test_a_lost_check_is_made_again_within_a_heartbeat(agent: Agent) -> None:
    registry = ConsulRegistry(agent.settings())
    with closing(registry.register(instance("a"))) as registration:
        agent.ask("PUT", "/v1/agent/service/deregister/a")
        began = time.monotonic()
        wait_until(lambda: registration.statistics().re_registrations == 1, SOON_S)
        assert time.monotonic() - began < SOON_S
        wait_until(lambda: registry.read() == (instance("a"),), SOON_S)


def told_by_doctor(agent: Agent, service: str) -> str:
    return " | ".join(one.sentence for one in registry_findings(f"consul:{url(agent.settings(service))}"))


def enter_at(agent: Agent, host: str, one: Instance) -> None:
    """Enters a node as the agent of another host would."""
    service = {"ID": service_id(one.node_id), "Service": "doctored", "Meta": meta_of(one)}
    check = {"Node": host, "CheckID": check_id(one), "Name": "heartbeat", "Status": "passing"}
    body = {"Node": host, "Address": "127.0.0.1", "Service": service, "Check": {**check, "ServiceID": service["ID"]}}
    agent.ask("PUT", "/v1/catalog/register", body)


def test_doctor_tells_of_ids_and_addresses_that_are_there_twice(agent: Agent) -> None:
    entries = {
        "h1": replace(instance("twin", 1), rpc="127.0.0.2:9"),
        "h2": replace(instance("alone", 1), rpc="127.0.0.1:9"),
        "h3": replace(instance("twin", 2), rpc="127.0.0.3:9"),
        "h4": replace(instance("other", 1), rpc="127.0.0.1:9"),
    }
    try:
        enter_at(agent, "h1", entries["h1"])
        enter_at(agent, "h2", entries["h2"])
        told = told_by_doctor(agent, "doctored")
        assert "answers with 2 nodes" in told
        assert "times and the latest life counts" not in told
        assert "name the address" not in told
        enter_at(agent, "h3", entries["h3"])
        enter_at(agent, "h4", entries["h4"])
        told = told_by_doctor(agent, "doctored")
        assert "node id 'twin' is entered 2 times and the latest life counts; give each its own --node-id" in told
        assert "2 nodes name the address 127.0.0.1:9" in told
        assert "give --listen an address of the host" in told
        assert told.count("name the address") == 1
    finally:
        for host in entries:
            agent.ask("PUT", "/v1/catalog/deregister", {"Node": host})


def test_doctor_tells_when_one_agent_holds_too_many_checks(agent: Agent) -> None:
    there = len(agent.ask("GET", "/v1/agent/checks"))
    checks = [{"CheckID": f"c{number}", "TTL": "10m"} for number in range(TTL_CHECKS_MAX - there)]
    agent.ask("PUT", "/v1/agent/service/register", {"Name": "many", "ID": "many", "Checks": checks})
    assert "checks live on this one agent" not in told_by_doctor(agent, "doctored")
    agent.ask("PUT", "/v1/agent/check/register", {"Name": "more", "ServiceID": "many", "TTL": "10m"})
    told = told_by_doctor(agent, "doctored")
    assert "801 checks live on this one agent" in told
    assert "run an agent on each host" in told
