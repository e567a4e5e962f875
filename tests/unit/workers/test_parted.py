"""What a replaced process had not begun runs elsewhere as soon as it cannot begin it any more, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from workers.desks import ExecutorDesk
from workers.page import Answer
from workers.parted import Parted

if TYPE_CHECKING:
    from workers.job import Job
    from workers.life import Life
    from workers.seat import Seat
    from workers.settlement import Settlement


class Process:
    """A life that has begun task 1 and not the others."""

    def __init__(self) -> None:
        self.in_hand: dict[int, Job] = {}
        self.ended = self.replaced = False
        self.why = "was ended by signal 9"
        self.child = self
        self.pid = 5
        self.shuts = 0

    def shut(self) -> None:
        self.shuts += 1

    def close(self) -> None:
        assert self.in_hand == {}, "its tenants' memory would stay until the garbage collector comes"

    def give_up(self, _desk: ExecutorDesk, _settlement: Settlement) -> None:
        assert self.shuts, "until then it might begin one more"

    def unbegun(self, in_hand: dict[int, Job]) -> list[tuple[int, Job]]:
        assert self.shuts, "until then it might begin one"
        return [(number, job) for number, job in in_hand.items() if number > 1]

    def lost(self) -> list[tuple[Job, Answer]]:
        return [(job, Answer.NONE) for number, job in self.in_hand.items() if number == 1]


class Scene:
    def __init__(self) -> None:
        self.process, self.told = Process(), list[str]()
        settlement, seat = cast("Settlement", self), cast("Seat", self)
        self.parted = Parted(settlement, seat, self.told.append, lambda: self.told.append("clear"))
        self.is_free: Any = None
        self.desk = ExecutorDesk(0)
        for number in (1, 2, 3):
            self.desk.in_hand[number] = cast("Job", JobStandIn(number))

    @property
    def life(self) -> Life:
        return cast("Life", self.process)

    def came_back(self, job: Any) -> None:
        self.told.append(f"{job.number} came back")

    def lost(self, job: Any, _why: str, _answer: Answer) -> None:
        self.told.append(f"{job.number} lost")

    def executor_opened(self) -> None:
        self.told.append("fed")

    def clear(self, _pid: int, then: Any) -> None:
        self.is_free = then


class JobStandIn:
    work_us = 0

    def __init__(self, number: int) -> None:
        self.number = number


def test_one_that_is_replaced_gives_back_what_it_had_not_begun_at_once() -> None:
    scene = Scene()
    scene.parted.add(scene.desk, scene.life)
    assert (scene.process.shuts, scene.desk.in_hand) == (1, {})
    assert scene.told == ["2 came back", "3 came back", "fed"]
    scene.parted.ended(scene.life)
    assert scene.told[3:] == ["1 lost", "fed"]


def test_one_that_nothing_replaces_keeps_only_what_it_had_begun() -> None:
    scene = Scene()
    scene.parted.end(scene.desk, scene.life)
    assert scene.told == ["2 came back", "3 came back", "fed"]
    assert list(scene.desk.in_hand) == [1]
    scene.parted.fence(scene.desk, scene.life)
    assert scene.told[3:] == ["1 lost", "fed"], "another executor may be idle, and this one be back in ten seconds"


def test_what_one_that_ended_at_once_had_not_begun_need_not_wait_for_the_next() -> None:
    scene = Scene()
    scene.process.shuts = 1
    scene.parted.fence(scene.desk, scene.life)
    assert scene.told == ["1 lost", "2 came back", "3 came back", "fed"]


def test_the_device_is_clear_once_the_last_of_them_holds_nothing_of_it() -> None:
    scene, others = Scene(), Process()
    scene.parted.add(scene.desk, scene.life)
    scene.parted.add(scene.desk, cast("Life", others))
    for life in (scene.life, cast("Life", others)):
        scene.parted.ended(life)
        assert not scene.parted.clear
        scene.is_free(free=True)
    assert scene.parted.clear
    assert scene.told.count("clear") == 1
    assert scene.told[-1] == "clear"


def test_memory_that_stays_held_is_told_and_not_called_clear() -> None:
    scene = Scene()
    scene.parted.add(scene.desk, scene.life)
    scene.parted.ended(scene.life)
    scene.is_free(free=False)
    assert scene.told[-1] == "the memory of a process that ended is still held"
