"""Hands one attempt to one worker, and keeps the books: begun under the lock, ended under the lock, whatever ends it.

Pick and booking are one step, so that two threads never price the same queue as empty. The end of an attempt feeds what
was learned back: the load report, the worker's speed, the wire's line, the verdict on a failure. A link that was seen
dead takes its worker out at once, without waiting for the registry. This module sends nothing: it names the link.
Read `router/core.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from discovery.instance import Readiness
from fabric import errors
from fabric.errors import OverspillError
from router.learned import bucket_of
from router.pick import Nobody, Picked, pick
from router.sizes import ReplySizes

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from threading import Lock
    from types import TracebackType

    from fabric.deadline import Deadline
    from fabric.message import Body
    from fabric.transport import Answer
    from router.accounting import Accounting
    from router.attempt import Attempts
    from router.config import RouterConfig
    from router.load import Dispatch
    from router.table import Command, Offer, Table
    from router.workers import WorkerLink

WORKER_FAULTS = (errors.NodeLost, errors.ExecutorLost, errors.ProtocolError, errors.StaleEpoch, errors.AccessDenied)
"""Errors that a worker has to answer for; enough of them in a row eject it."""
NEUTRAL = (errors.ResourceExhausted, errors.DeadlineExceeded, errors.Cancelled, errors.Unavailable)
"""Errors that tell nothing of a worker's health: it was busy, or the caller was in a hurry."""


class Attempt:  # mutable: its outcome is entered once
    """One dispatch to one worker, from `with` to its end. `outcome` stays None if it was given up on."""

    __slots__ = (
        "_dispatcher",
        "ack_no",
        "began_s",
        "body_bytes",
        "bucket",
        "deadline",
        "dispatch",
        "link",
        "model",
        "outcome",
        "picked",
        "reply_bytes",
        "round_trip_ms",
        "whole",
    )

    def __init__(
        self,
        dispatcher: Dispatcher,
        picked: Picked,
        link: WorkerLink,
        dispatch: Dispatch,
        deadline: Deadline,
        whole: Deadline,
        began_s: float,
    ) -> None:
        self._dispatcher = dispatcher
        self.picked = picked
        self.link = link
        self.dispatch = dispatch
        self.deadline = deadline
        self.whole = whole
        self.began_s = began_s
        self.model = ""
        self.bucket = self.body_bytes = self.reply_bytes = self.ack_no = 0
        self.round_trip_ms = 0.0
        self.outcome: Answer | OverspillError | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._dispatcher.end(self)


def _nobody_executes(commands: tuple[Command, ...]) -> None:
    assert not commands, "whoever has links must be named before the first request"


class Dispatcher:
    """Begins and ends attempts. `execute` carries out what the table orders, after the lock is let go."""

    __slots__ = ("_accounting", "_clock", "_config", "_lock", "_rng", "_sizes", "_table", "execute")

    def __init__(
        self,
        config: RouterConfig,
        table: Table,
        accounting: Accounting,
        lock: Lock,
        rng: Random,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._table = table
        self._accounting = accounting
        self._lock = lock
        self._rng = rng
        self._clock = clock
        self._sizes = ReplySizes()
        self.execute: Callable[[tuple[Command, ...]], None] = _nobody_executes

    def begin(self, model: str, body: Body, attempts: Attempts) -> Attempt | Nobody:
        """Picks a worker and books the dispatch. Raises UnknownModel or Unavailable before a first attempt."""
        body_bytes = body.layout.body_bytes
        bucket = bucket_of(body_bytes)
        commands: tuple[Command, ...] = ()
        attempt: Attempt | None = None
        with self._lock:
            now = self._clock()
            try:
                offer = self._table.offer(model)
            except OverspillError:
                if not attempts.count:
                    raise
                return Nobody((("every node that offered it", "gone"),))
            reply_bytes = self._sizes.guess(model, bucket, body_bytes)
            found = pick(
                offer,
                model,
                bucket,
                body_bytes + reply_bytes,
                attempts.avoid,
                self._config.remote_sample,
                self._rng,
                now,
            )
            if found.excluded:
                commands = self._sweep(offer)
            if isinstance(found, Picked):
                worker, link = found.worker, found.worker.link
                assert link is not None, "a picked worker has a link"
                # Time is only kept back where somebody else could use it, and where the length is known.
                split = found.candidates > 1 and worker.speed.known(model, bucket)
                deadline = attempts.sent(found.terms[0] / 1000.0 if split else None, now)
                dispatch = worker.ahead.sent(found.terms[4])
                attempt = Attempt(self, found, link, dispatch, deadline, attempts.deadline, now)
                attempt.model, attempt.bucket = model, bucket
                attempt.body_bytes, attempt.reply_bytes = body_bytes, reply_bytes
                attempt.ack_no = self._accounting.ack_no
        if commands:
            self.execute(commands)
        if attempt is not None:
            return attempt
        assert isinstance(found, Nobody)
        return found

    def _sweep(self, offer: Offer) -> tuple[Command, ...]:
        """Takes out workers whose link is dead, though no request of ours told so. The lock is held."""
        commands: tuple[Command, ...] = ()
        for worker in (*offer.local, *offer.remote):
            if worker.link is not None and not worker.link.alive:
                commands += self._table.link_lost(worker, worker.link)
        return commands

    def end(self, attempt: Attempt) -> None:
        """Takes a dispatch out of the books and learns from its outcome."""
        worker, outcome = attempt.picked.worker, attempt.outcome
        commands: tuple[Command, ...] = ()
        with self._lock:
            now = self._clock()
            if outcome is None:
                worker.ahead.ended(attempt.dispatch)
            elif isinstance(outcome, OverspillError):
                worker.ahead.ended(attempt.dispatch)
                self._judge(attempt, outcome, now)
            else:
                self._learn(attempt, outcome, now)
            if not attempt.link.alive:
                commands = self._table.link_lost(worker, attempt.link)
        if commands:
            self.execute(commands)

    def _learn(self, attempt: Attempt, answer: Answer, now: float) -> None:
        worker, model, bucket = attempt.picked.worker, attempt.model, attempt.bucket
        compute_ms = answer.compute_us / 1000.0
        attempt.round_trip_ms = (now - attempt.began_s) * 1000.0
        # The node writes its report when it hands the task to an executor, so it is as old as the run was long.
        worker.ahead.reported(answer.load, now - answer.compute_us / 1e6, attempt.dispatch)
        worker.ahead.ended(attempt.dispatch)
        worker.speed.learn(model, bucket, compute_ms, now)
        reply_bytes = answer.layout.body_bytes
        transport_ms = attempt.round_trip_ms - compute_ms - answer.queue_us / 1000.0
        worker.line_of(answer.wire).learn(attempt.body_bytes + reply_bytes, max(0.0, transport_ms))
        self._sizes.learn(model, bucket, reply_bytes)
        worker.answered()

    def _judge(self, attempt: Attempt, error: OverspillError, now: float) -> None:
        worker = attempt.picked.worker
        # Cut short for another attempt's sake: slow, hung or silent is the worker's own affair.
        overstayed = isinstance(error, errors.DeadlineExceeded) and attempt.deadline is not attempt.whole
        if isinstance(error, errors.Draining):
            worker.instance = replace(worker.instance, readiness=Readiness.DRAINING)
        elif overstayed or isinstance(error, WORKER_FAULTS):
            worker.failed(last_usable=self._table.last_usable(worker, attempt.model, now), now=now)
        elif not isinstance(error, NEUTRAL):
            worker.answered()
