"""Which executor of a node gets a piece of work: the one that finishes it first, which may be one that is busy.

Executors differ in speed, so an idle slow one may finish later than a fast one that has something left to do. It is
asked to wait for the fast one only as long as those who wait would keep that one busy for less than the slow one takes:
else the slow one is of use. This module keeps nothing. Read `workers/admission.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.desks import ExecutorDesk, ModelQueue

PACE_UNTRIED: Final = 0.5
"""An executor that never ran a model is taken to be a fast one, so that it is tried soon."""
LATE_US: Final = 2000.0
"""An executor that is late by more is not waited for: what it is at is slower than was thought."""


def best_desk(
    desks: tuple[ExecutorDesk, ...], model: ModelQueue, work_us: float, queued_us: float, now: float
) -> ExecutorDesk | None:
    """The executor that should get `work_us` of a model now, while `queued_us` of other work waits. None where none has
    room, or where it is better to wait for one that has none."""
    name, holders = model.name, model.holders
    best: ExecutorDesk | None = None
    best_us = 0.0
    best_has_room = False
    for desk in desks:
        if not desk.open or (holders is not None and desk.number not in holders):
            continue
        has_room = desk.has_room(now)
        left_us = desk.left_us(now)
        if not has_room and left_us < -LATE_US:
            continue
        pace = desk.pace.get(name, PACE_UNTRIED)
        ends_us = max(left_us, 0.0) + work_us * pace
        if not has_room:
            ends_us += queued_us * pace
        if best is None or ends_us < best_us:
            best, best_us, best_has_room = desk, ends_us, has_room
    return best if best_has_room else None


def batch_desk(
    desks: tuple[ExecutorDesk, ...], model: ModelQueue, work_us: float, queued_us: float, now: float
) -> ExecutorDesk | None:
    """The same for a batch, which goes to no executor that has one of the same model in hand: it may still grow."""
    free = tuple(desk for desk in desks if not any(job.model is model for job in desk.in_hand.values()))
    return best_desk(free, model, work_us, queued_us, now)
