"""Hands one attempt to one worker, and keeps the books: begun under the lock, ended under the lock, whatever ends it.

Pick and booking are one step, so that two threads never price the same queue as empty. The end of an attempt feeds what
was learned back: the load report, the worker's speed, the wire's line, the verdict on a failure. A link that was seen
dead takes its worker out at once, without waiting for the registry. This module sends nothing: it names the link.
Read `router/core.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.
# ruff: noqa: FURB136 - each request passes here, and a comparison costs a fifth of `max`.

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from discovery.instance import Readiness
from fabric import errors
from fabric.errors import OverspillError
from fabric.message import RequestId
from fabric.transport import Call
from router.hints import HintedKind
from router.patience import refuse_late
from router.pick import Nobody, Picked, pick
from router.resident import Sent
from router.tie import partners
from router.tied import Tied

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random
    from threading import Lock

    from fabric.deadline import Deadline
    from fabric.message import Body
    from fabric.transport import Answer
    from router.accounting import Accounting
    from router.attempt import Attempts
    from router.config import RouterConfig
    from router.learned import Kind
    from router.load import Dispatch
    from router.price import Terms
    from router.record import Record
    from router.resident import Referring, Resident
    from router.steps import Read
    from router.table import Command, Table
    from router.workers import Worker, WorkerLink

WORKER_FAULTS = (errors.NodeLost, errors.ExecutorLost, errors.ProtocolError, errors.StaleEpoch, errors.AccessDenied)
"""Errors that a worker has to answer for; enough of them in a row eject it."""
NEUTRAL = (errors.ResourceExhausted, errors.DeadlineExceeded, errors.Cancelled, errors.Unavailable)
"""Errors that tell nothing of a worker's health: it was busy, or the caller was in a hurry."""


class Attempt:  # mutable: its outcome is entered once
    """One dispatch to one worker, from `Dispatcher.begin` to `Dispatcher.end`: send `call` on `link` until `deadline`,
    and enter the `outcome`. It stays None if the attempt was given up on. `missing`: residents that the call brings."""

    __slots__ = (
        "_whole",
        "began_s",
        "beside",
        "call",
        "deadline",
        "dispatch",
        "hint",
        "kind",
        "link",
        "missing",
        "needs",
        "outcome",
        "picked",
        "round_trip_ms",
        "tied",
        "units",
    )

    def __init__(
        self,
        picked: Picked,
        link: WorkerLink,
        call: Call,
        dispatch: Dispatch,
        deadline: Deadline,
        whole: Deadline,
        kind: Kind,
        began_s: float,
        units: float,
        hint: float,
    ) -> None:
        self._whole = whole
        self.picked = picked
        self.link = link
        self.call = call
        self.dispatch = dispatch
        self.deadline = deadline
        self.kind = kind
        self.began_s = began_s
        self.units = units
        self.hint = hint
        self.tied: Tied | None = None
        self.round_trip_ms = 0.0
        self.beside: Read | None = None
        self.needs: Referring | None = None
        self.missing: tuple[Resident, ...] = ()
        self.outcome: Answer | OverspillError | None = None

    @property
    def cut_short(self) -> bool:
        """Whether it got less than all of the time, for another attempt's sake."""
        return self.deadline is not self._whole


def _nobody_executes(commands: tuple[Command, ...]) -> None:
    assert not commands, "whoever has links must be named before the first request"


class Dispatcher:
    """Begins and ends attempts. `execute` carries out what the table orders, after the lock is let go."""

    __slots__ = (
        "_accounting",
        "_client_id",
        "_clock",
        "_lock",
        "_refuse_late",
        "_rng",
        "_sample",
        "_spray",
        "_table",
        "_tied",
        "bytes_sent",
        "execute",
        "panics",
        "record",
        "residents",
    )

    def __init__(
        self,
        client_id: int,
        config: RouterConfig,
        table: Table,
        accounting: Accounting,
        lock: Lock,
        rng: Random,
        clock: Callable[[], float],
    ) -> None:
        self._client_id = client_id
        self._sample = config.remote_sample
        self._tied = config.tied
        self._refuse_late = config.refuse_late
        self._spray = config.panic == "spray"
        self.panics = self.bytes_sent = 0
        self.residents = Sent()
        self.record: Record | None = None
        self._table = table
        self._accounting = accounting
        self._lock = lock
        self._rng = rng
        self._clock = clock
        self.execute: Callable[[tuple[Command, ...]], None] = _nobody_executes

    def begin(self, model: str, body: Body, priority: int, attempts: Attempts) -> Attempt | Nobody:
        """Picks a worker and books the dispatch; with the first one the request is out. Raises UnknownModel or
        Unavailable before a first attempt."""
        body_bytes, needs = body.layout.body_bytes, attempts.needs
        begun: Attempt | Nobody
        with self._lock:
            now = self._clock()
            if not attempts.request_no:
                attempts.request_no = self._accounting.enter()
            offer = self._table.offers.get(model) or self._table.offer(model)
            units = 1.0
            kind: Kind
            if attempts.hint:
                kind = hinted = self._table.hints.kind(model)
                units = hinted.units(attempts.hint)
            else:
                kind = self._table.work.kind(model, body_bytes if needs is None else body_bytes + needs.nbytes)
            reply_bytes = kind.reply_bytes
            nbytes = body_bytes + reply_bytes
            seen: list[tuple[Worker, Terms]] | None = [] if self.record is not None else None
            avoid, fresh = attempts.avoid, attempts.fresh
            found = pick(offer, kind, nbytes, avoid, self._sample, self._rng, now, units, fresh, seen, needs)
            if not isinstance(found, Nobody) and found.last_resort:
                found = self._panicked(found)
            if isinstance(found, Nobody):
                begun = found
            else:
                worker, link, terms = found.worker, found.worker.link, found.terms
                assert link is not None, "a picked worker has a link"
                if self._refuse_late and terms[2] + terms[3] > 0.0:
                    refuse_late(attempts, found, kind, priority, now)
                # Time is only kept back where somebody else could use it, and where the length is known.
                split = found.candidates > 1 and attempts.idempotent and worker.speed.known(kind)
                deadline = attempts.sent(terms[0] / 1000.0 if split else None, now)
                request_id = RequestId(self._client_id, attempts.request_no)
                movable = attempts.idempotent and (found.candidates > 1 or attempts.beside is not None)
                number, ack_no = attempts.count - 1, self._accounting.ack_no
                call = Call(request_id, model, body, ack_no, priority, number, reply_bytes, movable)
                dispatch = worker.ahead.sent(worker.speed.full_ms(kind) * units)
                size = (units, attempts.hint)
                begun = Attempt(found, link, call, dispatch, deadline, attempts.deadline, kind, now, *size)
                begun.beside = attempts.beside
                if needs is not None:
                    begun.needs, begun.missing = needs, needs.claim(worker)
                # With a read beside it, whom to tie it with is known when that is done.
                elif begun.beside is None and self._tied and attempts.idempotent:
                    begun.tied = Tied.at_all(partners(begun, attempts.fresh, nbytes, now), begun)
                if self.record is not None and seen is not None:
                    told, tied = str(request_id), begun.tied
                    second = tied.picked.worker.name if tied is not None else ""
                    self.record.note(told, number, model, found, seen, now, second)
        return begun

    def _panicked(self, found: Picked) -> Picked | Nobody:
        """Nobody is usable: counts it, and keeps the request from them all if it is told to."""
        self.panics += 1
        return found if self._spray else Nobody(found.excluded)

    def end(self, attempt: Attempt, attempts: Attempts) -> None:
        """Takes a dispatch out of the books and learns from its outcome. With an answer the request is out no more."""
        if attempt.tied is not None:
            with self._lock:
                attempt.tied.resolve(attempt)
        worker, dispatch, outcome = attempt.picked.worker, attempt.dispatch, attempt.outcome
        commands: tuple[Command, ...] = ()
        with self._lock:
            now = self._clock()
            self.bytes_sent += attempt.call.body.layout.body_bytes
            if attempt.needs is not None:
                self.residents.note(attempt)
            if outcome is None:
                worker.ahead.ended(dispatch)
            elif isinstance(outcome, OverspillError):
                worker.ahead.ended(dispatch)
                self._judge(attempt, outcome, now)
                if not attempt.link.alive:
                    commands = self._table.link_lost(worker, attempt.link)
            else:
                self._accounting.leave(attempts.request_no)
                attempts.request_no = 0
                self._learn(attempt, dispatch, outcome, now)
        if commands:
            self.execute(commands)

    def _learn(self, attempt: Attempt, dispatch: Dispatch, answer: Answer, now: float) -> None:
        worker, kind = attempt.picked.worker, attempt.kind
        compute_ms = answer.compute_us / 1000.0
        attempt.round_trip_ms = (now - attempt.began_s) * 1000.0
        # The node writes its report when it hands the task to an executor, so it is as old as the run was long.
        worker.ahead.reported(answer.load, now - answer.compute_us / 1e6, dispatch)
        worker.ahead.ended(dispatch)
        reply_bytes, units = answer.layout.body_bytes, attempt.units
        if isinstance(kind, HintedKind):
            kind.heard(attempt.hint, compute_ms / worker.speed.full_ms(kind))
        worker.speed.learn(kind, compute_ms / units, now)
        kind.learn(compute_ms / units, reply_bytes, now)
        transport_ms = attempt.round_trip_ms - compute_ms - answer.queue_us / 1000.0
        nbytes = attempt.call.body.layout.body_bytes + reply_bytes
        worker.carried_by(answer.wire).learn(nbytes, transport_ms if transport_ms > 0.0 else 0.0, now)
        worker.answered()

    def _judge(self, attempt: Attempt, error: OverspillError, now: float) -> None:
        worker = attempt.picked.worker
        # One that was cut short was slow, hung or silent, which is the worker's own affair.
        overstayed = attempt.cut_short and isinstance(error, errors.DeadlineExceeded)
        if isinstance(error, errors.Draining):
            worker.instance = replace(worker.instance, readiness=Readiness.DRAINING)
        elif overstayed or isinstance(error, WORKER_FAULTS):
            worker.failed(last_usable=self._table.last_usable(worker, attempt.kind.model, now), now=now)
        elif not isinstance(error, NEUTRAL):
            worker.answered()
