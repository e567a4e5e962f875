"""The lives of an executor that its standby has replaced, until each is reaped and its tasks are settled.

Until the kernel says that a process is gone, it may still write to the slots of the tasks that it had begun: they stay
out of use until then. What it had not begun it will not begin, from the moment that its page is shut, and runs
elsewhere at once: the kernel may take a third of a second to let a process go that waits for its driver. Meanwhile the
standby works. Read `workers/shell.py` for who replaces whom.
"""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.desks import ExecutorDesk
    from workers.life import Life
    from workers.seat import Seat
    from workers.settlement import Settlement


class Parted:  # mutable: lives come and go
    """The replaced lives of one executor. `held` is called when the device's memory stays held by one that ended,
    `cleared` when nothing is left of any of them."""

    def __init__(
        self, settlement: Settlement, seat: Seat, held: Callable[[str], None], cleared: Callable[[], None]
    ) -> None:
        self.lives: list[Life] = []
        self._leaving = 0
        self._settlement = settlement
        self._seat = seat
        self._held = held
        self._cleared = cleared

    @property
    def clear(self) -> bool:
        """Whether nothing is left of any, on the device neither."""
        return self._leaving == 0

    def fence(self, desk: ExecutorDesk, life: Life) -> None:
        """It is reaped, and nothing has replaced it yet."""
        _take_all_back(desk, life)
        owed = bool(life.in_hand)
        _settle(life, self._settlement)
        if owed:
            self._settlement.executor_opened()  # another one may run what never ran long before this one is back

    def add(self, desk: ExecutorDesk, life: Life) -> None:
        """It has been replaced: it is killed, if it still lives."""
        _take_all_back(desk, life)
        self.lives.append(life)
        self._leaving += 1
        if life.ended:
            self.ended(life)
        else:
            self.end(desk, life)

    def end(self, desk: ExecutorDesk, life: Life) -> None:
        """Ends a life, replaced or not. Whoever waits for what it had begun may know, and the rest is free to run."""
        life.shut()
        life.give_up(desk, self._settlement)
        unbegun = life.unbegun(life.in_hand if life.replaced else desk.in_hand)
        for task_no, job in unbegun:
            if life.replaced:
                del life.in_hand[task_no]
            else:
                desk.take_back(task_no, monotonic())
            self._settlement.came_back(job)
        if unbegun:
            self._settlement.executor_opened()  # its standby, or another one, may run it now

    def ended(self, life: Life) -> None:
        """It is reaped."""
        self.lives.remove(life)
        _settle(life, self._settlement)
        self._settlement.executor_opened()  # what never ran may run now
        self._seat.clear(life.child.pid, self._is_clear)

    def _is_clear(self, free: bool) -> None:
        self._leaving -= 1
        if not free:
            self._held("the memory of a process that ended is still held")
        elif self.clear:
            self._cleared()


def _settle(life: Life, settlement: Settlement) -> None:
    """The process is gone, so nobody writes for its tasks any more: one is lost, the others never ran."""
    lost, unbegun = life.lost(), life.unbegun(life.in_hand)
    life.in_hand.clear()  # until the garbage collector comes it would hold the memory of their tenants
    life.child.close()
    for job, answer in lost:
        settlement.lost(job, life.why, answer)
    for _, job in unbegun:
        settlement.came_back(job)


def _take_all_back(desk: ExecutorDesk, life: Life) -> None:
    """The executor's tasks are this life's to settle, and its desk is empty."""
    life.replaced = True
    for task_no in list(desk.in_hand):
        job = desk.take_back(task_no, monotonic())
        assert job is not None, "it was just listed"
        life.in_hand[task_no] = job
