"""The node's load page: written soon after a change and not at each, the page before the lines, and whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest

from fabric.load_page import FILE, LINES_AT, LINES_BYTES, PAGE_BYTES, line_at, model_key, read_both, read_report
from workers.admission import Admission
from workers.dedupe import Dedupe
from workers.desks import ExecutorDesk, ModelQueue
from workers.job import Job
from workers.load_writer import SWEEP_S, WRITE_S, LoadWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

EPOCH = 41


class Reactor:
    """Timers that a test lets run."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.timers.append((delay_s, action))

    def run(self, delay_s: float) -> int:
        """Those that were set for so long; gives how many there were."""
        due = [one for one in self.timers if one[0] == delay_s]
        self.timers = [one for one in self.timers if one[0] != delay_s]
        for _, action in due:
            action()
        return len(due)


class Requests:
    """What the writer reads of a reception."""

    def __init__(self) -> None:
        self.sequence = 100
        self.executors = 2
        self.dedupe = Dedupe()


class World:
    """A writer, and the node that it writes about."""

    def __init__(self, folder: Path) -> None:
        self.model = ModelQueue("double", 8, None, idempotent=True)
        self.admission = Admission([self.model], (ExecutorDesk(0),), 8)
        self.requests = Requests()
        self.reactor = cast("Any", Reactor())
        self.path = folder / FILE
        requests: Any = self.requests
        self.writer = LoadWriter(self.reactor, folder, EPOCH, self.admission, requests)

    def request(self, client_id: int, number: int) -> Job:
        """One comes and waits."""
        asked: Any = None
        job = Job(self.model, client_id, number, asked, 0.0, 10.0, 1, 64)
        self.admission.offer(job, 0.0)
        self.requests.dedupe.client(client_id, 0.0).began(number, job)
        return job

    def read(self, client_id: int) -> Any:
        """As a reader does: its line first, then the page."""
        raw = self.path.read_bytes()
        at = line_at(client_id)
        return read_both(raw[at : at + LINES_BYTES], raw[:LINES_AT], client_id, EPOCH)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.writer.close()


def test_a_page_is_there_from_the_start(world: World) -> None:
    report = read_report(world.path.read_bytes())
    assert report is not None
    assert (report.node_epoch, report.outstanding_us, report.executors) == (EPOCH, 0, 2)
    assert world.path.stat().st_size == PAGE_BYTES
    assert world.path.stat().st_mode & 0o022 == 0, "nobody else may write it"


def test_many_changes_are_one_report(world: World) -> None:
    jobs = [world.request(7, number) for number in range(1, 6)] + [world.request(8, 1)]
    assert world.read(7).load.accepted == 0
    assert world.reactor.run(WRITE_S) == 1
    mine, others = world.read(7), world.read(8)
    assert (mine.load.accepted, others.load.accepted) == (5, 1)
    assert (mine.in_hand, others.in_hand) == (5, 1)
    assert mine.load.outstanding_us == sum(job.work_us for job in jobs) > 0
    assert [(model.key, model.queued) for model in mine.models] == [(model_key("double"), 6)]


def test_reports_stand_in_one_row_with_those_of_answers(world: World) -> None:
    before = world.requests.sequence
    world.request(7, 1)
    world.requests.sequence += 10  # answers that were sent meanwhile
    world.reactor.run(WRITE_S)
    assert world.read(7).load.sequence == world.requests.sequence > before + 10


def test_what_is_over_leaves_the_page(world: World) -> None:
    job = world.request(7, 1)
    world.reactor.run(WRITE_S)
    world.admission.withdraw(job)
    world.reactor.run(WRITE_S)
    reading = world.read(7)
    assert (reading.load.outstanding_us, reading.load.accepted) == (0, 1)
    assert reading.models[0].queued == 0


def test_executors_that_come_and_clients_that_are_forgotten_are_told_without_a_request(world: World) -> None:
    world.request(7, 1)
    world.reactor.run(WRITE_S)
    world.requests.executors = 1
    world.requests.dedupe.clients.clear()
    world.reactor.run(SWEEP_S)
    reading = world.read(7)
    assert (reading.load.executors, reading.load.accepted) == (1, 0)


def test_an_earlier_lifes_page_has_one_writer(tmp_path: Path) -> None:
    """Who still maps the old file reads the old life, and never two at once."""
    first = World(tmp_path)
    with first.path.open("rb") as old:
        second = World(tmp_path)
        report = read_report(old.read())
        assert report is not None
        assert report.sequence < second.requests.sequence + 1
        assert old.fileno() >= 0
        assert first.path.stat().st_ino != _inode(old.fileno())
    second.writer.close()
    first.writer.close()


def test_nothing_is_written_after_the_end(world: World) -> None:
    world.request(7, 1)
    world.writer.close()
    world.reactor.run(WRITE_S)
    world.reactor.run(SWEEP_S)
    assert not world.path.exists()
    world.admission.withdraw(world.request(7, 2))
    world.writer = LoadWriter(world.reactor, world.path.parent, EPOCH, world.admission, world.requests)


def _inode(fd: int) -> int:
    import os

    return os.fstat(fd).st_ino


def test_a_model_that_is_loaded_later_stands_there_too(world: World) -> None:
    world.admission.models["late"] = ModelQueue("late", 8, None, idempotent=True)
    world.writer.refresh()
    found = read_report(world.path.read_bytes()[:LINES_AT])
    assert found is not None
    assert [model.key for model in found.models] == [model_key("double"), model_key("late")]
