"""Who is to blame when an executor ends while it runs a batch, and what was learned when it does not.

One request of a batch may have ended the executor, and nobody can tell which. So none is blamed: where the model is
idempotent each runs once more, alone, and the guilty one shows itself; it is then charged with both deaths. This module
answers nobody. Read `workers/reception.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, QueueFull
from workers.handover import KEPT, LEADS, RAN, Spent
from workers.page import Answer
from workers.statistics import BACKEND, OTHER

if TYPE_CHECKING:
    from fabric.errors import OverspillError
    from workers.desks import ExecutorDesk
    from workers.job import Job
    from workers.sentinel import Suspects


def may_run_alone(job: Job, answer: Answer) -> bool:
    """Whether a job whose executor ended should run once more, by itself, since others ran with it. Not where its
    caller may have an answer: it would get another one, in slots that may be somebody else's by then."""
    ticket = job.ticket
    return ticket is not None and bool(ticket.mates) and job.model.idempotent and answer is Answer.NONE


def blame(job: Job, suspects: Suspects) -> None:
    """Charges a job with the death of its executor: with two, where it ran alone after the end of a batch."""
    ticket = job.ticket
    if ticket is not None and ticket.mates:
        return
    suspects.was_running(job.client_id, job.request_no)
    if ticket is not None and ticket.died_with_others:
        suspects.was_running(job.client_id, job.request_no)


def too_late(job: Job, now: float) -> OverspillError:
    """The error of a job that waited until its time was over, or for as long as its model's queue policy grants."""
    if job.deadline_s <= now:
        return DeadlineExceeded("the time was over before the request could begin", Fate.NEVER_RAN)
    waited_ms = (now - job.arrived_s) * 1000
    return QueueFull(
        f"the request waited {waited_ms:.0f} ms, which is all that model {job.model.name!r} grants; try another node"
    )


def learn(job: Job, flags: int, spent: Spent, now: float, desk: ExecutorDesk | None) -> None:
    """Counts a finished job, and learns from it how long its model takes, and this executor where there are several."""
    model, before = job.model, job.spent
    if not flags & KEPT:
        model.tally.failed(BACKEND if flags & RAN else OTHER, now - job.arrived_s)
        return
    known_us = model.speed.known_us(job.body_bytes)
    share_us = spent.compute_us
    if spent.rows == spent.batch_rows:
        model.speed.ran(job.body_bytes, share_us)
    else:
        share_us = share_us * spent.rows // spent.batch_rows
        model.speed.ran_in_batch(job.body_bytes, share_us, spent.compute_us)
    in_all = spent if before is None else together(before, spent)
    if model.whole is not None:  # the ensemble's own is that of all legs: so much work comes with each request
        model.whole.speed.ran(job.body_bytes, in_all.compute_us)
    model.tally.ran(in_all, leads=flags & LEADS != 0, took_s=now - job.arrived_s, now=now)
    if desk is not None and known_us:  # a guess tells nothing about an executor
        desk.learn(model.name, share_us, known_us)


def leg_ran(job: Job, spent: Spent, desk: ExecutorDesk | None) -> None:
    """The same of a leg of an ensemble that is not its last. The first is timed as a part of the whole."""
    speed, before = job.model.speed, job.spent
    known_us = speed.known_us(job.body_bytes)
    if job.model.whole is not None:
        speed.ran(job.body_bytes, spent.compute_us)
    if desk is not None and known_us:
        desk.learn(job.model.name, spent.compute_us, known_us)
    job.spent = spent if before is None else together(before, spent)


def together(before: Spent, after: Spent) -> Spent:
    """What two legs of one request took."""
    return Spent(
        before.compute_us + after.compute_us, before.queue_us + after.queue_us, before.input_us + after.input_us,
        before.output_us + after.output_us, after.rows, after.batch_rows,
    )  # fmt: skip
