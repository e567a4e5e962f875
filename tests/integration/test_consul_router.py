"""A router and real nodes that know each other through Consul only: whatever happens to it, no request fails by it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Self

import numpy as np
import pytest

from discovery.instance import Readiness
from discovery.registry import open_registry
from fabric.errors import OverspillError
from router import Router
from tests.consul_agents import Agent, Fleet, binary, wait_until
from tests.consul_agents import shared as agent
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["agent"]
ROOT = Path(__file__).resolve().parents[2]
SOON_S = 40.0
X = np.arange(8, dtype=np.float32).reshape(2, 4)


def url(agent: Agent, more: str = "") -> str:
    times = "heartbeat_s=0.5&ttl_s=5&backoff_max_s=1"
    return f"consul:http://127.0.0.1:{agent.http}?last_good=off&{times}{more}"


class Load:
    """Callers that send one request after the other until the block ends, and what became of each."""

    def __init__(self, router: Router, callers: int = 2, timeout_s: float = 10.0) -> None:
        self._router, self._timeout_s = router, timeout_s
        self._stop = threading.Event()
        self.done = 0
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(callers)]

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._router.infer("echo", {"x": X}, timeout_s=self._timeout_s) as reply:
                    assert reply["y"][0, 0] == 1.0
                self.done += 1
            except OverspillError as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            self._stop.wait(0.005)

    def goes_on(self, count: int = 20) -> None:
        """Waits until so many more requests are answered."""
        want = self.done + count
        wait_until(lambda: self.done >= want or bool(self.failed), SOON_S)
        assert not self.failed

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)


@pytest.mark.parametrize("outage_s", [4.0, pytest.param(60.0, marks=pytest.mark.long)])
def test_consul_away_costs_no_request(tmp_path: Path, outage_s: float) -> None:
    """All of Consul is killed under load. A node that is killed meanwhile is left out by its links alone; afterwards
    everybody is entered again."""
    binary()
    with Fleet(tmp_path) as fleet, Nodes(tmp_path, url(fleet.client, "&answer_s=1")) as nodes:
        for name in ("one", "two"):
            nodes.start(name, "rpc")
        nodes.wait_ready("one", "two")
        with Router.connect(nodes.registry) as router:
            with Load(router) as load:
                load.goes_on()
                for one in (fleet.client, *fleet.servers):
                    one.kill()
                began = time.monotonic()
                load.goes_on()
                _wait_stale(router)
                assert router.statistics().registry_age_s < SOON_S
                nodes.kill("two")
                load.goes_on(50)
                while time.monotonic() - began < outage_s and not load.failed:
                    time.sleep(0.1)
                for one in (*fleet.servers, fleet.client):
                    one.start()
                fleet.client.wait_leader()
                wait_until(lambda: "one" in _ids(nodes.registry), SOON_S)
                nodes.start("three", "rpc")
                nodes.wait_ready("three")
                _wait_taken_in(router, "three")
                load.goes_on()
            assert load.failed == []
            assert load.done > 10 * outage_s
        del router
        settle()


def _wait_stale(router: Router) -> None:
    wait_until(lambda: "stale" in router.statistics().registry_trouble, SOON_S)


def _ids(registry: str) -> set[str]:
    with suppress(OverspillError):
        return {one.node_id for one in open_registry(registry).read()}
    return set()


def _wait_gone(registry: str, name: str) -> None:
    wait_until(lambda: name not in _ids(registry), SOON_S)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.long)])
def test_all_nodes_restarted_one_by_one_under_load(agent: Agent, tmp_path: Path, count: int) -> None:
    names = [f"n{number}" for number in range(count)]
    with Nodes(tmp_path, url(agent, "&service=rolling")) as nodes:
        for name in names:
            nodes.start(name, "rpc")
        nodes.wait_ready(*names)
        with Router.connect(nodes.registry) as router:
            with Load(router) as load:
                load.goes_on()
                for name in names:
                    nodes.drain(name)
                    _wait_gone(nodes.registry, name)
                    nodes.start(name, "rpc")
                    nodes.wait_ready(name)
                    # Whether it gets work beside another idle one is the price's affair; when that leaves it must.
                    _wait_taken_in(router, name)
                    load.goes_on()
            assert load.failed == []
        del router
        settle()


@pytest.mark.long
def test_a_killed_worker_is_out_by_its_channel(
    agent: Agent, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Consul takes its time to live to say so: the link's end is what counts. Median of five kills."""
    times = []
    with Nodes(tmp_path, url(agent, "&service=killed")) as nodes:
        nodes.start("stays", "rpc")
        for number in range(5):
            nodes.start(f"dies{number}", "rpc")
            nodes.wait_ready("stays", f"dies{number}")
            with Router.connect(nodes.registry) as router, Load(router) as load:
                _wait_taken_in(router, f"dies{number}")
                load.goes_on()
                times.append(_kill_and_time(nodes, router, f"dies{number}"))
                assert f"dies{number}" in _ids(nodes.registry), "Consul does not know it yet"
                load.goes_on()
            assert load.failed == []
            del router, load
        settle()
    record_property("out of the ready set, median ms", f"{median(times) * 1e3:.1f}")
    assert median(times) <= 0.1, times


def _wait_taken_in(router: Router, name: str) -> None:
    """Until the router has a link to it and would give it work."""
    wait_until(lambda: any(f"{name}: ready" in told for told in router.statistics().workers), SOON_S)


def _kill_and_time(nodes: Nodes, router: Router, name: str) -> float:
    """Seconds from the kill until the router no longer calls the worker ready."""
    began = time.monotonic()
    nodes.kill(name)
    while any(name in told and "ready" in told for told in router.statistics().workers):
        assert time.monotonic() - began < SOON_S
        time.sleep(0.001)
    return time.monotonic() - began


@pytest.fixture(scope="module")
def alive(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """A node for the tests that leave it alive."""
    with Nodes(tmp_path_factory.mktemp("nodes"), url(agent, "&service=alive")) as nodes:
        nodes.start("alive", "rpc")
        nodes.wait_ready("alive")
        yield nodes


def test_a_stale_entry_on_a_reused_port_gets_nothing(alive: Nodes) -> None:
    """Another node listens where a dead one's entry points: it is asked who it is, and it is not that one."""
    registry = open_registry(alive.registry)
    (there,) = registry.read()
    dead = replace(there, node_id="dead", node_epoch=1)
    earlier = replace(there, node_id="earlier", node_epoch=there.node_epoch - 1)
    with closing(registry.register(dead)), closing(registry.register(earlier)):
        with Router.connect(alive.registry) as router:
            found = registry.read()
            assert {one.node_id for one in found} == {"alive", "dead", "earlier"}
            assert all(one.readiness is Readiness.READY for one in found)
            for _ in range(30):
                with router.infer("echo", {"x": X}, timeout_s=10.0) as reply:
                    assert reply.trace.worker == "alive"
        del router, reply
        settle()


def command(*words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "overspill", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)


def test_every_command_takes_the_url(alive: Nodes, tmp_path: Path) -> None:
    told = command("models", "--registry", alive.registry)
    assert "echo" in told.stdout, told.stderr
    np.savez(tmp_path / "in.npz", x=X)
    files = ("--input", str(tmp_path / "in.npz"), "--output", str(tmp_path / "out.npz"))
    called = command("call", "echo", "--registry", alive.registry, *files)
    assert called.returncode == 0, called.stderr
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["y"], X + 1)
    doctor = command("doctor", "--registry", alive.registry)
    assert "is agent alone of version" in doctor.stdout
    assert "answers with 1 node" in doctor.stdout
    nobody = command("models", "--registry", "consul:http://127.0.0.1:1")
    assert nobody.returncode == 3
    assert "start a Consul agent" in nobody.stderr


@pytest.mark.long
def test_the_demo_over_consul(agent: Agent, tmp_path: Path) -> None:
    registry, report = url(agent, "&service=demo"), str(tmp_path / "report.html")
    told = command("demo", "--registry", registry, "--limit-s", "1", "--report", report, timeout_s=250.0)
    assert told.returncode == 0, told.stdout[-2000:] + told.stderr[-2000:]
    assert "local" not in agent.ask("GET", "/v1/agent/services"), "who was drained took its entry away"
