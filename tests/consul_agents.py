"""Real Consul agents on loopback for tests: started, stopped, killed and hung, each bounded in time.

An agent has ports and a folder of its own and ends with its test. `tests/consul_network.py` has what stands between it
and a client. Where no Consul can be had, `binary` skips and says why.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pytest

from discovery.agent.url import ConsulSettings, ConsulTimes
from discovery.catalogue import Guards
from discovery.instance import Insert, Remove
from tests.consul_binary import find
from tests.ports import free_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.contract.test_watch import Told

START_TIMEOUT_S = 60.0
FAST = ConsulTimes(
    heartbeat_s=0.3,
    ttl_s=3.0,
    backoff_max_s=0.5,
    propagation_s=0.2,
    guards=Guards(empty_grace_s=1.0, confirm_s=0.3),
)
"""Periods for tests, a tenth of the usual ones; blocking reads keep theirs."""


def binary() -> str:
    """The path of a Consul. Skips the test where there is none."""
    path, reason = find()
    if not path:
        pytest.skip(reason)
    return path


def _stands_still(pid: int) -> bool:
    """Whether each of its threads is stopped."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return all(state == "T" for state in states)


class Agent:
    """One agent: `servers` 0 makes a client. `more` is merged into its configuration."""

    def __init__(self, folder: Path, name: str, servers: int = 1, more: dict[str, Any] | None = None) -> None:
        self.folder, self.name = folder / name, name
        self.folder.mkdir(parents=True)
        self.http, self.serf, self.server, self.https = free_ports(4)
        self.config: dict[str, Any] = {
            "node_name": name,
            "data_dir": str(self.folder / "data"),
            "bind_addr": "127.0.0.1",
            "client_addr": "127.0.0.1",
            "disable_update_check": True,
            "leave_on_terminate": False,
            "performance": {"raft_multiplier": 1},
            "ports": {
                "http": self.http, "https": -1, "grpc": -1, "dns": -1, "serf_wan": -1,
                "serf_lan": self.serf, "server": self.server,
            },
        }  # fmt: skip
        if servers:
            self.config |= {"server": True, "bootstrap_expect": servers}
        self.config |= more or {}
        self.process: subprocess.Popen[bytes] | None = None

    def join(self, others: list[Agent]) -> None:
        """Has it join these when it starts."""
        self.config["retry_join"] = [f"127.0.0.1:{other.serf}" for other in others if other is not self]
        self.config["retry_interval"] = "500ms"

    def start(self) -> None:
        """Starts it; does not wait for a leader."""
        path = self.folder / "agent.json"
        path.write_text(json.dumps(self.config))
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary(), "agent", "-config-file", str(path)], stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """SIGKILL, and waits for its end."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait(10)
            self.process = None

    def signal(self, number: signal.Signals) -> None:
        """SIGSTOP, and waits until it stands still (its threads answer for a moment more), or SIGCONT."""
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGSTOP:
            end_s = time.monotonic() + 5.0
            while not _stands_still(self.process.pid):
                assert time.monotonic() < end_s, "a stopped agent still runs"
                time.sleep(0.001)

    def forget(self) -> None:
        """Removes its data, as a container without a volume does."""
        import shutil

        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def ask(self, method: str, path: str, body: object = None, token: str = "") -> Any:
        """One request, as an operator would send it."""
        told = self.raw(method, path, None if body is None else json.dumps(body).encode(), token)
        return json.loads(told) if told else None

    def raw(self, method: str, path: str, body: bytes | None = None, token: str = "") -> bytes:
        """The same with bytes."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", body, method=method)
        if token:
            request.add_header("X-Consul-Token", token)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=10) as response:
            return bytes(response.read())

    def wait_leader(self) -> None:
        """Waits until it knows a leader and answers reads."""

        def log() -> str:
            return (self.folder / "log").read_text(errors="replace")[-2000:]

        def ready() -> bool:
            assert self.process is None or self.process.poll() is None, f"the agent ended {log()}"
            with suppress(OSError, ValueError):
                return bool(self.ask("GET", "/v1/status/leader")) and self._reads()
            return False

        wait_until(ready, START_TIMEOUT_S, log)

    def _reads(self) -> bool:
        token = self.config.get("acl", {}).get("tokens", {}).get("master", "")
        nodes = self.ask("GET", "/v1/catalog/nodes", token=token)
        return any(node["Node"] == self.name for node in nodes)

    def settings(self, service: str = "overspill", times: ConsulTimes = FAST, port: int = 0) -> ConsulSettings:
        """Settings of a registry there."""
        return ConsulSettings("127.0.0.1", port or self.http, service=service, last_good="off", times=times)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGCONT)
        self.kill()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent that the tests of a file may stop for a while, but leave running."""
    binary()
    with Agent(tmp_path_factory.mktemp("consul"), "alone") as running:
        running.wait_leader()
        yield running


@pytest.fixture
def agent(shared: Agent) -> Iterator[Agent]:
    """The agent, with nobody in it at the end."""
    shared.wait_leader()
    yield shared
    with suppress(OSError):
        for service in shared.ask("GET", "/v1/agent/services"):
            shared.ask("PUT", f"/v1/agent/service/deregister/{service}")


class Fleet:
    """Three servers and one client agent, which the workers and callers of a test use."""

    def __init__(self, folder: Path, more: dict[str, Any] | None = None) -> None:
        self.servers = [Agent(folder, f"server-{number}", 3, more) for number in range(3)]
        self.client = Agent(folder, "client", 0, more)
        for agent in (*self.servers, self.client):
            agent.join(self.servers)

    def leader(self) -> Agent:
        """The server that leads now."""
        told = str(self.client.ask("GET", "/v1/status/leader"))
        return next(server for server in self.servers if told.endswith(f":{server.server}"))

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.push(self.__exit__)
            for agent in (*self.servers, self.client):
                agent.start()
            self.client.wait_leader()
            undo.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for agent in (self.client, *self.servers):
            agent.__exit__()


def wait_until(true: Callable[[], bool], timeout_s: float, why: Callable[[], str] = lambda: "") -> None:
    """Waits for what an agent does in its own time."""
    give_up_at = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < give_up_at, f"it did not come to pass in {timeout_s:g} s {why()}"
        time.sleep(0.02)


def with_times(settings: ConsulSettings, **times: Any) -> ConsulSettings:
    """The settings with other periods."""
    return replace(settings, times=replace(settings.times, **times))


def inserted(told: Told, name: str, epoch: int = 1) -> bool:
    """Whether a watch told of this life of a node."""
    return any(isinstance(one, Insert) and one.instance.key == (name, epoch) for one in told.changes)


def removed(told: Told, name: str) -> bool:
    """Whether a watch told that a node is gone."""
    return any(isinstance(one, Remove) and one.node_id == name for one in told.changes)
