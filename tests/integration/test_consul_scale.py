"""`consul:` at the sizes of a fleet, with the promises in numbers: the exact ones are long, for a quiet machine."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pytest

from discovery.agent.registry import ConsulRegistry
from discovery.agent.url import ConsulTimes
from discovery.instance import Remove
from fabric.errors import OverspillError
from router.table import Dial
from tests.consul_agents import Agent, binary, inserted, wait_until, with_times
from tests.consul_agents import shared as agent
from tests.contract.test_watch import Told
from tests.unit.discovery.sample import instance
from tests.unit.router.fleet import Fleet as RouterFleet
from tests.unit.router.fleet import NamedLink
from tests.unit.router.test_flapping import pick_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from discovery.instance import Change

__all__ = ["agent"]
ROOT = Path(__file__).resolve().parents[2]
SOON_S = 60.0


@pytest.mark.parametrize(
    ("watches", "interval_s", "factor"), [(40, 0.5, 5.0), pytest.param(150, 1.0, 1.5, marks=pytest.mark.long)]
)
def test_heartbeats_are_on_time_beside_many_watches(
    agent: Agent, watches: int, interval_s: float, factor: float, record_property: Callable[[str, object], None]
) -> None:
    """150 blocking reads in one process hold up no beat: the beat has a connection of its own."""
    settings = with_times(agent.settings("beats"), heartbeat_s=interval_s)
    registry = ConsulRegistry(settings)
    open_watches = [registry.watch(Told()) for _ in range(watches)]
    try:
        with closing(registry.register(instance("a"))) as registration:
            for number in range(4):  # each wakes all of them
                with closing(registry.register(instance(f"n{number}"))):
                    time.sleep(interval_s)
            told = registration.statistics()
    finally:
        for one in open_watches:
            one.close()
    record_property("longest gap between beats, intervals", f"{told.longest_gap_s / settings.times.heartbeat_s:.2f}")
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
    with entered(tmp_path, count, seconds) as (fleet, flapper):
        told = Told()
        with closing(ConsulRegistry(fleet.settings(times=ConsulTimes())).watch(told)) as watch:
            assert len(told.changes) == count
            go(flapper)
            time.sleep(0.5)
            began, cpu = time.monotonic(), time.process_time()
            time.sleep(seconds - 0.5)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
            assert flapper.stdout is not None
            assert int(flapper.stdout.readline()) > 0
            reads = watch.statistics().reads
            wait_until(lambda: watch.statistics().critical == 0 and _all_there(told, count), SOON_S)
    record_property("share of one core", f"{share:.1%}")
    assert share < share_max, f"{share:.1%} of a core, {reads} reads"


@contextmanager
def entered(folder: Path, count: int, seconds: float) -> Iterator[tuple[Agent, subprocess.Popen[str]]]:
    """An agent with so many workers, and the process that has a tenth of them come or go each second once it may."""
    binary()
    with Agent(folder, "fleet") as fleet:
        fleet.wait_leader()
        command = [sys.executable, "-m", "tests.integration.consul_flapper"]
        command += [str(fleet.http), str(count), "0.1", str(seconds)]
        flapper = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert flapper.stdout is not None
        assert flapper.stdin is not None
        try:
            assert flapper.stdout.readline() == "entered\n"
            yield fleet, flapper
        finally:
            flapper.kill()
            flapper.wait(10)
            for pipe in (flapper.stdin, flapper.stdout):
                with suppress(OSError):
                    pipe.close()


def go(flapper: subprocess.Popen[str]) -> None:
    assert flapper.stdin is not None
    flapper.stdin.write("go\n")
    flapper.stdin.flush()


@pytest.mark.long
def test_a_pick_costs_the_same_beside_a_fleet_in_motion(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """1,000 workers in a router that follows a real watch; tests/unit/router/test_flapping.py has the short form."""
    router = RouterFleet()
    table, seconds = router.core.table, 20.0

    def follow(changes: tuple[Change, ...]) -> None:
        with router.core.lock:
            for command in table.changed(changes):
                assert isinstance(command, Dial), "a removal ends no link"
                table.link_up(command.worker, NamedLink(command.worker.name))
        batches.append(len(changes))

    def mean_us() -> float:
        return sum(pick_us(router, "etr") for _ in range(500)) / 500

    batches: list[int] = []
    still, moving = [], []
    with (
        entered(tmp_path, 1000, seconds) as (fleet, flapper),
        closing(ConsulRegistry(fleet.settings(times=ConsulTimes())).watch(follow)),
    ):
        mean_us()
        for _ in range(10):
            time.sleep(0.5)
            still.append(mean_us())
        go(flapper)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            time.sleep(0.5)
            moving.append(mean_us())
    told = f"{median(still):.1f} us beside a still fleet, {median(moving):.1f} us beside one in motion"
    record_property("a pick", told)
    assert sum(batches[1:]) > 500, batches
    assert median(moving) <= 1.5 * median(still), told


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
