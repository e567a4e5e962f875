"""The deployment of `docker/` on a real engine: built, brought up, used, broken and rolled, with no failed request.

Three Consul servers, an agent for each host, a local and two remote nodes. The images are built without a network, from
what `tests/integration/engine/packages.py` fetched; the first run on a machine takes minutes for that, later do not.
Skipped where no engine can run, with the reason.
"""

from __future__ import annotations

import json
import re
import resource
import subprocess
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.debian import DebianError
from tests.integration.engine import images, load
from tests.integration.engine.daemon import Engine, EngineError, running_engine

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.leaks("the engine stands over several tests; the fixture ends it, and its namespaces end the rest"),
]
COMPOSE = Path(__file__).resolve().parents[2] / "docker" / "compose.yaml"
SERVERS = ("consul-1", "consul-2", "consul-3")
NODES = ("local", "remote-1", "remote-2")
REGISTRY = "consul:http://agent-local:8500"
READY_S = 120.0
DRAINED_S = 25.0
"""`stop_grace_period` of a node is 30 s, then Docker kills it: this is less, so a node that hangs is seen."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """The system of docker/compose.yaml, under a project name of its own."""

    engine: Engine
    files: tuple[Path, ...]

    @property
    def env(self) -> dict[str, str]:
        return {"OVERSPILL_IMAGE": images.IMAGE, "CONSUL_IMAGE": images.CONSUL, "COMPOSE_PROJECT_NAME": "overspill"}

    def compose(self, *words: str, check: bool = True) -> str:
        return self.engine.compose(self.files, *words, env=self.env, check=check)

    def inspect(self, service: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.engine.docker("inspect", name(service)))[0]
        return found

    def healthy(self, service: str) -> bool:
        state = self.inspect(service)["State"]
        assert state["Running"], self.logs(service)
        return bool(state["Health"]["Status"] == "healthy")

    def logs(self, service: str) -> str:
        command = [str(self.engine.tree / "usr/bin/docker"), "logs", "--tail", "30", name(service)]
        done = subprocess.run(command, env=self.engine.env, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr

    def leader(self) -> str:
        """The Consul server that leads, asked of any that answers."""
        for server in SERVERS:
            words = ("exec", name(server), "consul", "operator", "raft", "list-peers")
            found = re.search(r"^(\S+) .* leader ", self.engine.docker(*words, check=False), re.MULTILINE)
            if found:
                return found[1]
        raise AssertionError("no server knows a leader")


def name(service: str) -> str:
    return f"overspill_{service}_1"


def wait(true: Any, what: str, timeout_s: float = READY_S) -> None:
    give_up_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < give_up_s, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(0.3)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    try:
        context = running_engine()
        running = context.__enter__()
    except (DebianError, EngineError) as error:
        pytest.skip(f"needs Docker's engine: {error}")
    try:
        try:
            images.build(running)
        except DebianError as error:
            pytest.skip(f"needs what the images are made of: {error}")
        yield running
    finally:
        context.__exit__(None, None, None)


@pytest.fixture(scope="module")
def deployment(engine: Engine) -> Iterator[Deployment]:
    override = engine.folder / "test.yaml"
    override.write_text(differences())
    deployed = Deployment(engine, (COMPOSE, override))
    try:
        deployed.compose("up", "--detach")
        for service in (*SERVERS, *NODES):
            wait(lambda service=service: deployed.healthy(service), f"{service} is healthy")
        yield deployed
    finally:
        deployed.compose("down", "--volumes", "--timeout", "3", check=False)


def differences() -> str:
    """What the test has otherwise. It asks for health more often, to wait less. And a container cannot have more than
    its engine: where this machine gives us less than a service manager would give Docker, it gets what there is."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)
    _, locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    files = 65536 if files == resource.RLIM_INFINITY else min(files, 65536)
    text = "services:\n"
    for service in (*NODES, "client"):
        text += f"  {service}:\n    ulimits: {{nofile: {files}, memlock: {locked}}}\n"
        if service in NODES:
            text += "    healthcheck: {interval: 2s}\n"
    for service in SERVERS:
        text += f"  {service}:\n    healthcheck: {{interval: 2s}}\n"
    return text


@dataclass(frozen=True, slots=True)
class Sending:
    """The load in its container."""

    process: subprocess.Popen[str]

    def phase(self, named: str) -> dict[str, Any]:
        """Ends the present phase and begins another; gives what the ended one saw."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(named + "\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def wait_for(self, worker: str, *, gone: bool = False) -> None:
        """Until a node serves the load, or does not any more, by the load's own word."""
        give_up_s = time.monotonic() + READY_S
        while True:
            self.phase("looking")
            time.sleep(0.5)
            if (worker in self.phase("looked")["workers"]) is not gone:
                return
            assert time.monotonic() < give_up_s, f"{worker} {'still' if gone else 'never'} served"


@contextmanager
def sending(deployment: Deployment) -> Iterator[Sending]:
    project = ("--network", "overspill_fabric", "--volume", "overspill_local-run:/run/overspill")
    words = ("run", "--rm", "--interactive", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", *project)
    program = Path(load.__file__).read_text()
    process = deployment.engine.popen(*words, "--entrypoint", "python3", images.IMAGE, "-c", program, REGISTRY)
    watch = threading.Timer(READY_S, process.kill)
    watch.start()
    try:
        assert process.stdout is not None
        began = process.stdout.readline()
        assert began == "sending\n", process.stderr.read() if process.stderr else began
        watch.cancel()
        yield Sending(process)
    finally:
        watch.cancel()
        try:
            process.communicate(timeout=30.0)
        finally:
            process.kill()
            process.wait()


def idempotent_failures(counts: dict[str, Any]) -> list[str]:
    """What failed although another try was allowed: all but a request that may run once only, and perhaps did."""
    return [text for text in counts["failed"] if not text.startswith("ledger: UNKNOWN")]


def test_nodes_run_without_privileges(deployment: Deployment) -> None:
    facts = deployment.inspect("local")
    assert facts["Config"]["User"] == "10001:10001"
    assert facts["HostConfig"]["ReadonlyRootfs"]
    status = deployment.engine.docker("exec", name("local"), "cat", "/proc/1/status", "/proc/1/comm")
    assert status.strip().endswith("tini"), "who buries what models leave behind"
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
    told = deployment.engine.docker("exec", name("local"), "overspill", "doctor", "--registry", REGISTRY, check=False)
    assert "0 broken" in told, told
    assert "src" not in deployment.engine.docker("exec", name("local"), "ls", "/").split(), "what built it stays behind"


def test_the_client_sends_a_round_and_nothing_is_lost_wrong_or_duplicated(deployment: Deployment) -> None:
    for service in NODES:
        wait(lambda service=service: deployment.healthy(service), f"{service} is healthy")
    words = ("demo", "--attach", "--registry", REGISTRY, "--limit-s", "2", "--report", "/var/lib/overspill/report.html")
    told = deployment.compose("run", "--rm", "client", *words)
    row = re.search(r"tasks .*\n\s*(\d+)\s+(\d+)\s+(\d+)\s+(\d+)", told)
    assert row is not None, told
    tasks, *bad = map(int, row.groups())
    assert tasks > 10, told
    assert bad == [0, 0, 0], told
    assert re.search(r"\blocal\b.*\blocal\b", told), f"the local node is reached over shared memory: {told}"
    page = deployment.compose("run", "--rm", "--entrypoint", "cat", "client", "/var/lib/overspill/report.html")
    assert page.count("<circle") > 10


def test_a_killed_node_and_a_killed_consul_leader_fail_no_request(deployment: Deployment) -> None:
    with sending(deployment) as load_:
        for node in NODES:
            load_.wait_for(node)
        load_.phase("killing")
        deployment.engine.docker("kill", name("remote-1"))
        leader = deployment.leader()
        deployment.engine.docker("kill", name(leader))
        time.sleep(5.0)
        counts = load_.phase("healing")
        assert counts["sent"]["etr_mini"] > 20
        assert idempotent_failures(counts) == []
        wait(lambda: deployment.leader() != leader, "another server leads")
        deployment.engine.docker("kill", name("agent-local"))  # the client's own, and the local node's
        deployment.engine.docker("start", name("remote-1"), name(leader), name("agent-local"))
        load_.wait_for("remote-1")
        counts = load_.phase("healed")
        assert counts["failed"] == []


@pytest.mark.long  # the short form, with nodes as plain processes, is in test_consul_router.py
def test_rolling_all_nodes_fails_no_request(deployment: Deployment) -> None:
    with sending(deployment) as load_:
        for node in NODES:
            wait(lambda node=node: deployment.healthy(node), f"{node} is healthy")
            load_.wait_for(node)
        load_.phase("rolling")
        for node in NODES:
            began = time.monotonic()
            deployment.engine.docker("stop", name(node))
            took_s = time.monotonic() - began
            assert deployment.inspect(node)["State"]["ExitCode"] == 0, deployment.logs(node)
            assert took_s < DRAINED_S
            # A new container, with another address, as a new image would bring.
            deployment.compose("up", "--detach", "--no-deps", "--force-recreate", node)
            wait(lambda node=node: deployment.healthy(node), f"{node} is healthy")
        counts = load_.phase("rolled")
        assert counts["failed"] == []
        assert counts["sent"]["etr_mini"] > 100
        assert counts["sent"]["ledger"] > 100
        load_.wait_for("remote-2")
        assert load_.phase("over")["failed"] == []
