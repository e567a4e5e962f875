"""What a replaced process had not begun runs elsewhere as soon as it cannot begin it any more, and once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from workers.desks import ExecutorDesk
from workers.parted import Parted

if TYPE_CHECKING:
    from workers.job import Job
    from workers.life import Life
    from workers.seat import Seat
    from workers.settlement import Settlement


class Process:
    """A life that has begun task 1 and not the others; `faulted` says that it begins nothing any more."""

    def __init__(self) -> None:
        self.in_hand: dict[int, Job] = {}
        self.faulted = self.ended = self.replaced = False
        self.why = "was ended by signal 9"
        self.child = self
        self.pid = 5
        self.killed = 0

    def kill(self) -> None:
        self.killed += 1

    def close(self) -> None:
        self.in_hand.clear()

    def give_up(self, _desk: ExecutorDesk, _settlement: Settlement) -> None:
        assert self.replaced

    def unbegun(self) -> list[tuple[int, Job]]:
        return [(number, job) for number, job in self.in_hand.items() if number > 1]

    def lost(self) -> list[tuple[Job, bool]]:
        return [(job, False) for number, job in self.in_hand.items() if number == 1]


class Scene:
    def __init__(self) -> None:
        self.process, self.told = Process(), list[str]()
        self.parted = Parted(cast("Settlement", self), cast("Seat", self), self.told.append)
        self.desk = ExecutorDesk(0)
        for number in (1, 2, 3):
            self.desk.in_hand[number] = cast("Job", JobStandIn(number))

    @property
    def life(self) -> Life:
        return cast("Life", self.process)

    def came_back(self, job: Any) -> None:
        self.told.append(f"{job.number} came back")

    def lost(self, job: Any, _why: str, *, answered: bool) -> None:
        self.told.append(f"{job.number} lost")

    def executor_opened(self) -> None:
        self.told.append("fed")

    def clear(self, _pid: int, then: Any) -> None:
        then(True)  # noqa: FBT003 - the answer itself


class JobStandIn:
    work_us = 0

    def __init__(self, number: int) -> None:
        self.number = number


def test_one_that_is_killed_gives_back_once_the_kernel_ends_it() -> None:
    scene = Scene()
    scene.parted.add(scene.desk, scene.life)
    assert (scene.process.killed, scene.told, scene.desk.in_hand) == (1, [], {}), "it might begin one yet"
    scene.process.faulted = True
    scene.parted.give_back(scene.life)
    assert scene.told == ["2 came back", "3 came back", "fed"]
    scene.parted.give_back(scene.life)
    scene.parted.ended(scene.life)
    assert scene.told[3:] == ["1 lost", "fed"]
    scene.parted.give_back(scene.life)
    assert len(scene.told) == 5


def test_one_that_said_so_itself_gives_back_at_once() -> None:
    scene = Scene()
    scene.process.faulted = True
    scene.parted.add(scene.desk, scene.life)
    assert scene.told == ["2 came back", "3 came back", "fed"]


def test_one_that_is_not_replaced_keeps_its_tasks() -> None:
    scene = Scene()
    scene.process.faulted = True
    scene.parted.give_back(scene.life)
    assert scene.told == []
