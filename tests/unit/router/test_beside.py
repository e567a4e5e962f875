"""Reads beside requests: each worker once at a time, never waited for, and none after the end."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING

from fabric.frame import Load
from fabric.transport import WireName
from router.beside import Beside
from router.config import RouterConfig
from router.load import Page
from router.steps import Read
from tests.unit.router.fleet import Fleet, answer, body

if TYPE_CHECKING:
    from router.learned import Kind
    from router.workers import Worker


class Pages:
    """Pages that are there once the test lets go."""

    def __init__(self) -> None:
        self.go, self.all = Event(), Event()
        self.read: list[str] = []
        self.told: list[tuple[str, Page | None]] = []
        self.wanted = 0

    def __call__(self, worker: Worker) -> Page | None:
        self.read.append(worker.name)
        assert self.go.wait(30.0)
        return Page(Load(1, 0, 5000, 1), 100.0) if worker.name == "a" else None

    def tell(self, worker: Worker, page: Page | None, _: Kind) -> None:
        self.told.append((worker.name, page))
        if len(self.told) == self.wanted:
            self.all.set()


def test_a_worker_is_read_once_at_a_time_and_whoever_asks_does_not_wait() -> None:
    fleet, pages = Fleet("a", "b"), Pages()
    beside = Beside(pages, pages.tell)
    pages.wanted = 2
    step = Read(fleet.core.table.workers, fleet.core.table.work.kind("plan", 32))
    for _ in range(5):
        beside.begin(step)
    assert not pages.told
    pages.go.set()
    assert pages.all.wait(30.0)
    beside.close(wait=True)
    assert sorted(pages.read) == ["a", "b"]
    assert dict(pages.told)["b"] is None
    beside.begin(step)
    assert len(pages.read) == 2, "nothing is read after the end"


def rpc_fleet(run_ms: float) -> Fleet:
    """Four workers that only rpc reaches, whose runs take so long; none of them reported for a second."""
    fleet = Fleet("a", "b", "c", "d", config=RouterConfig(seed=1))
    fleet.core.pages, fleet.core.readable = (lambda _: None), (lambda worker: worker.is_local)
    kind = fleet.core.table.work.kind("plan", body().layout.body_bytes)
    for sequence, worker in enumerate(fleet.core.table.workers):
        worker.speed.learn(kind, run_ms, fleet.now)
        kind.learn(run_ms, 64, fleet.now)
        worker.ahead.reported(Load(sequence + 1, 0, 0, 1), fleet.now)
        worker.carried_by(WireName.RPC).learn(64, 0.8, fleet.now)
    fleet.now += 1.0
    return fleet


def test_pages_that_must_be_asked_for_are_read_beside_long_requests_once_in_a_run() -> None:
    fleet = rpc_fleet(100.0)
    begun: list[Read] = []
    life = fleet.life()
    sent = fleet.send(life)
    assert sent.beside is not None
    begun.append(sent.beside)
    assert {worker.name for worker in begun[0].workers} == {"a", "b", "c", "d"}
    for worker in begun[0].workers:
        fleet.core.was_read(worker, Page(Load(50, 0, 5000, 1), fleet.now), begun[0].kind)
    assert fleet.core.statistics().pages_read == 4
    fleet.now += 0.05
    again = fleet.life()
    assert fleet.send(again).beside is None, "what was read half a run ago tells of the same queue"
    for each in (life, again):
        fleet.finish(each, answer(Load(51, 1, 0, 1)))
    fleet.assert_idle()


def test_pages_are_not_asked_for_where_a_read_costs_much_beside_a_run() -> None:
    fleet = rpc_fleet(4.0)
    life = fleet.life()
    assert fleet.send(life).beside is None
    life.close()
