"""`consul:` at the sizes of a fleet, with the promises in numbers: the exact ones are long, for a quiet machine."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from discovery.agent.registry import ConsulRegistry
from discovery.agent.url import ConsulTimes
from discovery.instance import Remove
from fabric.errors import OverspillError
from tests.consul_agents import Agent, binary, inserted, wait_until, with_times
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    binary()
    with Agent(tmp_path_factory.mktemp("consul"), "alone") as running:
        running.wait_leader()
        yield running


@pytest.mark.parametrize(("watches", "factor"), [(40, 5.0), pytest.param(150, 1.5, marks=pytest.mark.long)])
def test_heartbeats_are_on_time_beside_many_watches(
    agent: Agent, watches: int, factor: float, record_property: Callable[[str, object], None]
) -> None:
    """150 blocking reads in one process hold up no beat: the beat has a connection of its own."""
    settings = with_times(agent.settings("beats"), heartbeat_s=0.5)
    registry = ConsulRegistry(settings)
    open_watches = [registry.watch(Told()) for _ in range(watches)]
    try:
        with closing(registry.register(instance("a"))) as registration:
            for number in range(4):  # each wakes all of them
                with closing(registry.register(instance(f"n{number}"))):
                    time.sleep(0.5)
            told = registration.statistics()
    finally:
        for one in open_watches:
            one.close()
    record_property("longest gap, intervals", f"{told.longest_gap_s / settings.times.heartbeat_s:.2f}")
    assert told.beats >= 4
    assert told.failures == 0
    assert told.longest_gap_s <= factor * settings.times.heartbeat_s, told


@pytest.mark.parametrize(
    ("count", "seconds", "share_max"), [(100, 1.5, 0.5), pytest.param(1000, 20.0, 0.05, marks=pytest.mark.long)]
)
def test_a_fleet_in_motion_costs_little(
    tmp_path: Path, count: int, seconds: float, share_max: float, record_property: Callable[[str, object], None]
) -> None:
    """A tenth of the workers come or go each second. Afterwards the list is whole again."""
    binary()
    with Agent(tmp_path, "fleet") as fleet:
        fleet.wait_leader()
        command = [sys.executable, "-m", "tests.integration.consul_flapper"]
        command += [str(fleet.http), str(count), "0.1", str(seconds)]
        flapper = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert flapper.stdout is not None
        assert flapper.stdin is not None
        try:
            assert flapper.stdout.readline() == "entered\n"
            told = Told()
            with closing(ConsulRegistry(fleet.settings(times=ConsulTimes())).watch(told)) as watch:
                assert len(told.changes) == count
                flapper.stdin.write("go\n")
                flapper.stdin.flush()
                time.sleep(0.5)
                began, cpu = time.monotonic(), time.process_time()
                time.sleep(seconds - 0.5)
                share = (time.process_time() - cpu) / (time.monotonic() - began)
                assert int(flapper.stdout.readline()) > 0
                reads = watch.statistics().reads
                wait_until(lambda: watch.statistics().critical == 0 and _all_there(told, count), SOON_S)
        finally:
            flapper.kill()
            flapper.wait(10)
            for pipe in (flapper.stdin, flapper.stdout):
                with suppress(OSError):
                    pipe.close()
    record_property("share of one core", f"{share:.1%}")
    assert share < share_max, f"{share:.1%} of a core, {reads} reads"


def _all_there(told: Told, count: int) -> bool:
    there: set[str] = set()
    for change in told.changes:
        if isinstance(change, Remove):
            there.discard(change.node_id)
        else:
            there.add(change.instance.node_id)
    return len(there) == count


def wait_told(told: Told, name: str) -> None:
    told.wait(lambda _: inserted(told, name), SOON_S)


@pytest.mark.long
def test_news_after_a_registration_and_after_a_restart(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Median of nine: a new worker is told within 50 ms; of five: within 2 s after its agent was restarted empty."""
    binary()
    delays, restarts = [], []
    with Agent(tmp_path, "news") as agent:
        agent.wait_leader()
        registry = ConsulRegistry(agent.settings(times=ConsulTimes()))
        for number in range(9):
            told = Told()
            with closing(registry.watch(told)):
                time.sleep(0.2)
                began = time.monotonic()
                with closing(registry.register(instance(f"n{number}"))):
                    wait_told(told, f"n{number}")
                    delays.append(told.times[-1] - began)
        for number in range(5):
            told = Told()
            with closing(registry.watch(told)):
                agent.kill()
                agent.forget()
                agent.start()
                agent.wait_leader()
                began = time.monotonic()
                registration = None
                while registration is None:
                    with suppress(OverspillError):
                        registration = registry.register(instance(f"r{number}"))
                with closing(registration):
                    wait_told(told, f"r{number}")
                    restarts.append(told.times[-1] - began)
    record_property("news, median ms", f"{median(delays) * 1e3:.1f}")
    record_property("news after a restart, median s", f"{median(restarts):.2f}")
    assert median(delays) <= 0.05, delays
    assert median(restarts) <= 2.0, restarts
