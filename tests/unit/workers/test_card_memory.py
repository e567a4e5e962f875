"""Memory on cards as a node knows it: whose it is, who reaches it, when it goes; and work that is bound there."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

import pytest

from fabric.card_place import CardPlace, place_in
from fabric.dtypes import DType
from fabric.errors import InvalidArgument, OverspillError, ResidentMissing
from fabric.layout import TensorSpec, layout_of
from workers.admission import Admission
from workers.batchconfig import Batching
from workers.card_memory import CONTENT, REGIONS_MAX, CardRegion
from workers.desks import ExecutorDesk, ModelQueue
from workers.device import Card
from workers.handover import Control
from workers.job import DEFAULT_LEVEL, Job, Waiter
from workers.lending import Lending
from workers.resident import Use

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Reactor
    from workers.crew import Crew

WAITER = cast("Waiter", object())
HANDLE = bytes(range(64))
MINE, OTHERS = 7, 8


class Seat:
    def __init__(self, card: int) -> None:
        self.card = Card(card, f"FAKE-{card}", "fake", 1 << 30) if card >= 0 else None


class Shell:
    """What an executor was told, and lent."""

    def __init__(self, desk: ExecutorDesk, card: int) -> None:
        self.desk, self.seat, self.lending = desk, Seat(card), Lending()
        self.told: list[Control] = []

    def tell(self, control: Control, descriptors: tuple[int, ...] = ()) -> None:
        self.told.append(control)
        for fd in descriptors:
            assert CONTENT.unpack(os.pread(fd, CONTENT.size, 0)) == (HANDLE, 1000)


class Timer:
    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Scene:
    """Two executors on card 0, one on card 1, one on a processor."""

    def __init__(self) -> None:
        self.desks = tuple(ExecutorDesk(number) for number in range(4))
        self.shells = tuple(Shell(desk, card) for desk, card in zip(self.desks, (0, 0, 1, -1), strict=True))
        for desk in self.desks:
            desk.open = True
        self.model = ModelQueue("m", 100, None, idempotent=True)
        self.admission = Admission([self.model], self.desks, 100, 1 << 20)
        self.memory = self.admission.card_memory
        self.admission.residents.dropped = self.dropped
        self.gone: list[int] = []
        self.timers: list[Timer] = []
        self.answers: list[tuple[int, OverspillError | None]] = []
        self.number = 0

    def dropped(self, number: int) -> None:
        self.gone.append(number)
        for shell in self.shells:
            shell.lending.drop(number, shell.tell)

    def call_later(self, _after_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(call))
        return self.timers[-1]

    def open(self, card: int = 0, client: int = MINE, handle: bytes = HANDLE) -> int:
        """Asked for, and not answered yet; the number that it will have."""

        def then(number: int, error: OverspillError | None) -> None:
            self.answers.append((number, error))

        crew, reactor = cast("Crew", self), cast("Reactor", self)
        self.memory.open(crew, reactor, client, handle, card, 1000, then)
        return max(self.memory._regions)

    def opened(self, card: int = 0) -> int:
        number = self.open(card)
        shell = next(each for each in self.shells if each.seat.card is not None and each.seat.card.index == card)
        shell.lending.heard(Control("opened", number))
        return number

    def job(self, *places: CardPlace | bytes, client: int = MINE) -> tuple[Job, bytes]:
        self.number += 1
        names = [place if isinstance(place, bytes) else place.name for place in places]
        specs = [TensorSpec(f"t{at}", DType.UINT8, (100,), 100, name) for at, name in enumerate(names)]
        job = Job(self.model, client, self.number, WAITER, 0.0, 100.0, DEFAULT_LEVEL, 64)
        return job, layout_of(tuple(specs)).encoded


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_is_opened_by_an_executor_of_its_card_before_it_is_answered(scene: Scene) -> None:
    number = scene.open(1)
    assert scene.answers == []
    (lent,) = scene.shells[2].told
    assert (lent.word, lent.number, place_in(bytes.fromhex(lent.digest))) == ("resident", number, CardPlace(number, 0))
    scene.shells[2].lending.heard(Control("opened", number))
    assert scene.answers == [(number, None)]
    assert scene.timers[0].call is None
    assert not any(shell.told for shell in (*scene.shells[:2], scene.shells[3]))
    scene.memory.close_all()


def test_what_cannot_be_opened_is_told_and_forgotten(scene: Scene) -> None:
    number = scene.open()
    scene.shells[0].lending.heard(Control("opened", number, ("CUDA error 1",)))
    ((told, error),) = scene.answers
    assert told == 0
    assert isinstance(error, InvalidArgument)
    assert "GPU 0 (FAKE-0)" in str(error)
    assert "CUDA error 1" in str(error)
    assert (len(scene.memory), scene.gone) == (0, [number])
    assert [control.word for control in scene.shells[0].told] == ["resident", "let_go"]


def test_an_executor_that_says_nothing_is_not_waited_for_forever(scene: Scene) -> None:
    scene.open()
    assert scene.timers[0].call is not None
    scene.timers[0].call()
    assert "no answer in 10 s" in str(scene.answers[0][1])
    assert len(scene.memory) == 0


def test_nobody_there_is_told_at_once(scene: Scene) -> None:
    with pytest.raises(InvalidArgument, match=r"GPU 5; it has 0 \(FAKE-0\), 1 \(FAKE-1\)"):
        scene.open(5)
    with pytest.raises(InvalidArgument, match="64 bytes"):
        scene.open(0, handle=HANDLE[1:])
    scene.desks[2].open = False
    with pytest.raises(OverspillError, match="takes no work now"):
        scene.open(1)
    for _ in range(REGIONS_MAX):
        scene.open(0)
    with pytest.raises(OverspillError, match="unregister some"):
        scene.open(0)
    scene.memory.left(MINE)
    assert len(scene.memory) == 0


def test_a_request_runs_where_its_memory_is_and_holds_it(scene: Scene) -> None:
    number = scene.opened(1)
    job, descriptors = scene.job(CardPlace(number, 900))
    desk = scene.admission.offer(job, 0.0, descriptors)
    assert desk is scene.desks[2]
    assert [use.kept.number for use in job.uses] == [number]
    assert job.body_bytes == 64, "its size counts for nobody's time"
    scene.memory.close(number, OTHERS)  # whose it is not
    scene.memory.close(number, MINE)
    assert scene.gone == [], "in use"
    refused, again = scene.job(CardPlace(number, 0))
    with pytest.raises(InvalidArgument, match="not registered"):
        scene.admission.offer(refused, 0.0, again)
    scene.admission.over(job)
    assert scene.gone == [number]


@pytest.mark.parametrize(
    ("offset", "client", "told"),
    [(901, MINE, "do not lie"), (2**63, MINE, "do not lie"), (0, OTHERS, "not registered")],
)
def test_a_place_that_is_none_is_refused(scene: Scene, offset: int, client: int, told: str) -> None:
    job, descriptors = scene.job(CardPlace(scene.opened(), offset), client=client)
    with pytest.raises(InvalidArgument, match=told):
        scene.admission.offer(job, 0.0, descriptors)
    assert scene.admission.outstanding_us == 0
    scene.memory.close_all()


def test_all_of_a_request_is_on_one_card_that_has_the_model(scene: Scene) -> None:
    zero, one = scene.opened(0), scene.opened(1)
    job, descriptors = scene.job(CardPlace(zero, 0), CardPlace(one, 0))
    with pytest.raises(InvalidArgument, match="two cards"):
        scene.admission.offer(job, 0.0, descriptors)
    scene.model.holders = frozenset({1, 3})
    job, descriptors = scene.job(CardPlace(one, 0))
    with pytest.raises(InvalidArgument, match=r"no executor of GPU 1 \(FAKE-1\)"):
        scene.admission.offer(job, 0.0, descriptors)
    job, descriptors = scene.job(CardPlace(zero, 0), CardPlace(zero, 500))
    assert scene.admission.offer(job, 0.0, descriptors) is scene.desks[1]
    scene.memory.close_all()


def test_a_missing_resident_beside_it_holds_nothing(scene: Scene) -> None:
    number = scene.opened()
    spec = TensorSpec("r", DType.UINT8, (100,), 100, b"\x55" * 32, referred=True)
    place = TensorSpec("x", DType.UINT8, (100,), 100, CardPlace(number, 0).name)
    job, _ = scene.job()
    with pytest.raises(ResidentMissing):
        scene.admission.offer(job, 0.0, layout_of((spec, place)).encoded)
    scene.memory.close(number, MINE)
    assert scene.gone == [number]


def test_one_that_waits_for_its_card_holds_up_nobody(scene: Scene) -> None:
    number = scene.opened(1)

    def ask(*places: CardPlace) -> tuple[Job, ExecutorDesk | None]:
        job, descriptors = scene.job(*places)
        desk = scene.admission.offer(job, 0.0, descriptors if places else b"")
        if desk is not None:
            desk.give(job.request_no, job, 0.0)
            desk.work_us += 10_000
        return job, desk

    first, there = ask(CardPlace(number, 0))
    assert there is scene.desks[2]
    second, none = ask(CardPlace(number, 0))
    third, nothing = ask(CardPlace(number, 100))
    assert (none, nothing) == (None, None)
    assert {ask()[1] for _ in range(3)} == {scene.desks[0], scene.desks[1], scene.desks[3]}
    assert scene.admission.waiting == 2
    free, waits = ask()
    assert waits is None
    scene.desks[0].in_hand.clear()
    scene.desks[0].work_us = 0
    work = scene.admission.next_work(0.0)
    assert work == (scene.desks[0], [free]), "those before it wait for another card"
    assert scene.admission.next_work(0.0) is None or work[0] is not scene.desks[2]
    scene.admission.withdraw(second)
    scene.desks[2].take_back(first.request_no, 0.0)
    scene.desks[2].work_us = 0
    assert scene.admission.next_work(0.0) == (scene.desks[2], [third])
    assert scene.admission.waiting == 0
    scene.memory.close_all()


def test_batching_leaves_it_alone(scene: Scene) -> None:
    scene.admission.reline(scene.model, Batching(rows_max=8))
    number = scene.opened(1)
    job, descriptors = scene.job(CardPlace(number, 0))
    scene.model.line_up(job, descriptors, 0)
    assert scene.admission.offer(job, 0.0, descriptors) is None
    assert scene.admission.next_work(0.0) == (scene.desks[2], [job])
    scene.desks[2].give(1, job, 0.0)
    scene.admission.put_back(job)
    assert scene.admission.waiting_jobs() == [job]
    scene.admission.withdraw(job)
    scene.memory.close(number, MINE)
    assert scene.gone == [number]


def test_each_generation_is_lent_it_again_and_once(scene: Scene) -> None:
    number = scene.opened()
    region = scene.memory._regions[number]
    assert isinstance(region, CardRegion)
    uses = (Use(region, fills=False),)
    shell = scene.shells[0]
    shell.lending.tell(uses, shell.tell)
    assert len(shell.told) == 1, "it knows"
    shell.lending = Lending()
    for _ in range(2):
        shell.lending.tell(uses, shell.tell)
    assert len(shell.told) == 2
    shell.lending.heard(Control("opened", number, ("its owner is gone",)))  # the request hears of it from the executor
    assert scene.answers == [(number, None)]
    scene.memory.close_all()
