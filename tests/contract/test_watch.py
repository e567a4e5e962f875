"""The contract of a registry's watch, over every registry: what is told, when, by which thread, and after `close`."""

from __future__ import annotations

import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from discovery.instance import Change, Insert, Readiness, Remove
from tests.consul_agents import Agent
from tests.consul_binary import find
from tests.contract.watch_worlds import WORLDS, WatchWorld
from tests.unit.discovery.sample import instance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SLACK_S = 10.0
"""Added to every wait for a busy machine; the promise of 100 ms has a test of its own."""


class Told:
    """Records what a watch calls back with, and lets a test wait for it."""

    def __init__(self) -> None:
        self.batches: list[tuple[Change, ...]] = []
        self.times: list[float] = []
        self.threads: set[int] = set()
        self._news = threading.Condition()

    def __call__(self, changes: tuple[Change, ...]) -> None:
        with self._news:
            self.batches.append(changes)
            self.times.append(time.monotonic())
            self.threads.add(threading.get_ident())
            self._news.notify_all()

    @property
    def changes(self) -> list[Change]:
        return [change for batch in self.batches for change in batch]

    def wait(self, done: Callable[[list[Change]], bool], timeout_s: float = SLACK_S) -> None:
        with self._news:
            assert self._news.wait_for(lambda: done(self.changes), timeout_s), f"told only {self.changes}"

    def wait_nothing_beyond(self, count: int) -> None:
        with self._news:
            assert not self._news.wait_for(lambda: len(self.changes) > count, 1.0), f"told {self.changes}"


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent | None]:
    """A real Consul; None where there is none."""
    if not find()[0]:
        yield None
        return
    with Agent(tmp_path_factory.mktemp("consul"), "alone") as running:
        running.wait_leader()
        yield running


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest, tmp_path: Path, agent: Agent | None) -> Iterator[WatchWorld]:
    made = WORLDS[request.param](tmp_path, agent)
    yield made
    made.close()


@pytest.fixture
def moving(world: WatchWorld) -> WatchWorld:
    if not world.changes:
        pytest.skip("nobody comes or goes in a fixed list")
    return world


def test_present_state_comes_before_watch_returns(world: WatchWorld) -> None:
    told = Told()
    with closing(world.registry().watch(told)):
        assert len(told.batches) == 1
        assert told.batches[0] == tuple(Insert(one) for one in world.registry().read())


def test_close_twice_and_age(world: WatchWorld) -> None:
    watch = world.registry().watch(Told())
    assert 0.0 <= watch.age_s() < SLACK_S
    began = time.monotonic()
    watch.close()
    watch.close()
    assert time.monotonic() - began < SLACK_S


def test_registration_closes_twice(world: WatchWorld) -> None:
    registration = world.registry().register(instance("a"))
    registration.update(instance("a", readiness=Readiness.DRAINING))
    registration.close()
    registration.close()


@pytest.mark.parametrize("slack_s", [SLACK_S, pytest.param(0.0, marks=pytest.mark.long)])
def test_a_new_node_is_told_within_the_promise(moving: WatchWorld, slack_s: float) -> None:
    told = Told()
    delays = []
    with closing(moving.registry().watch(told)):
        for number in range(9):
            began = time.monotonic()
            with closing(moving.registry().register(instance(f"n{number}"))):
                told.wait(
                    lambda changes, n=number: any(
                        isinstance(c, Insert) and c.instance.node_id == f"n{n}" for c in changes
                    )
                )  # type: ignore[misc]
                delays.append(told.times[-1] - began)
    assert sorted(delays)[4] <= moving.news_s + slack_s, f"median of {delays}"


def test_what_comes_and_goes(moving: WatchWorld) -> None:
    told = Told()
    here, other = instance("here"), instance("other")
    with closing(moving.registry().register(here)), closing(moving.registry().watch(told)):
        assert told.batches == [(Insert(here),)]
        with closing(moving.registry().register(other)) as registration:
            told.wait(lambda changes: Insert(other) in changes)
            drained = replace(other, readiness=Readiness.DRAINING)
            registration.update(drained)
            told.wait(lambda changes: Insert(drained) in changes)
            assert set(moving.registry().read()) == {here, drained}
        told.wait(lambda changes: Remove("other", 1) in changes)
        assert told.changes == [Insert(here), Insert(other), Insert(drained), Remove("other", 1)]
        assert len(told.threads) == 2, "the present state by the caller, the rest by one thread of the watch"


def test_nothing_changes_while_nodes_just_live(moving: WatchWorld) -> None:
    told = Told()
    with closing(moving.registry().register(instance("a"))), closing(moving.registry().watch(told)):
        told.wait_nothing_beyond(1)


def test_a_new_life_removes_the_old_one(moving: WatchWorld) -> None:
    told = Told()
    registry = moving.registry()
    with closing(registry.register(instance("a", 1))), closing(registry.watch(told)):
        new_life = registry.register(instance("a", 2))
        with closing(new_life):
            told.wait(lambda changes: Insert(instance("a", 2)) in changes)
            assert told.changes == [Insert(instance("a", 1)), Remove("a", 1), Insert(instance("a", 2))]
            told.wait_nothing_beyond(3)  # the old life does not fight for its place


def test_the_last_node_leaves_after_a_grace(moving: WatchWorld) -> None:
    told = Told()
    registration = moving.registry().register(instance("a"))
    with closing(moving.registry().watch(told)):
        registration.close()
        told.wait(lambda changes: Remove("a", 1) in changes)


def test_a_broken_registry_changes_nothing(moving: WatchWorld) -> None:
    told = Told()
    with closing(moving.registry().register(instance("a"))), closing(moving.registry().watch(told)) as watch:
        moving.break_it()
        told.wait_nothing_beyond(1)
        assert watch.age_s() > 0.7, "the age says that there is no news"
        assert "stale" in watch.trouble()
        moving.mend()
        with closing(moving.registry().register(instance("b"))):
            told.wait(lambda changes: Insert(instance("b")) in changes)
        end_s = time.monotonic() + SLACK_S
        while watch.age_s() >= 0.7:
            assert time.monotonic() < end_s, "its age does not fall"
            time.sleep(0.01)
        while watch.trouble():
            assert time.monotonic() < end_s, "the trouble does not end"
            time.sleep(0.01)


def test_a_failing_watcher_is_told_again(moving: WatchWorld, caplog: pytest.LogCaptureFixture) -> None:
    told = Told()

    def fail_once(changes: tuple[Change, ...]) -> None:
        told(changes)
        if len(told.batches) == 2:
            raise ValueError("a fault of the watcher's own")

    registry = moving.registry()
    with closing(registry.watch(fail_once)), closing(registry.register(instance("a"))):
        told.wait(lambda changes: Insert(instance("a")) in changes)
        with closing(registry.register(instance("b"))):
            told.wait(lambda changes: Insert(instance("b")) in changes)
    assert "a fault of the watcher's own" in caplog.text


def test_no_callback_after_close(moving: WatchWorld) -> None:
    for _ in range(5):
        told = Told()
        watch = moving.registry().watch(told)
        with closing(moving.registry().register(instance("a"))):
            watch.close()
            count = len(told.batches)
            time.sleep(0.15)
            assert len(told.batches) == count


def test_a_watch_closed_inside_its_callback(moving: WatchWorld) -> None:
    told = Told()
    holder = []

    def close_it(changes: tuple[Change, ...]) -> None:
        told(changes)
        if changes:
            holder[0].close()

    holder.append(moving.registry().watch(close_it))
    with closing(moving.registry().register(instance("a"))):
        told.wait(lambda changes: len(changes) == 1)
    holder[0].close()


def test_two_watches_see_the_same(moving: WatchWorld) -> None:
    one, two = Told(), Told()
    registry = moving.registry()
    with closing(registry.watch(one)), closing(registry.watch(two)), closing(registry.register(instance("a"))):
        for told in (one, two):
            told.wait(lambda changes: Insert(instance("a")) in changes)
