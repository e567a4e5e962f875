"""One request from pick to reply, as a generator that the blocking and the asyncio client both drive.

`Core.life` yields what is to be done (send this `Attempt`, `Wait` so long) and is sent the outcome. It holds all
decisions, so that the two clients cannot differ. Whatever ends it early (a cancelled await, Ctrl-C) closes the
generator, whose `finally` blocks settle every count. One lock guards workers, prices and counts; it is never
held over I/O. This module opens no link and sends nothing. Read `router/client.py` and `router/aio.py` next.
"""

from __future__ import annotations

import os
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

from fabric import errors
from fabric.deadline import Deadline
from fabric.errors import ArenaFull, InvalidArgument, OverspillError, ResidentMissing
from router.accounting import Accounting
from router.attempt import Attempts
from router.backoff import FullJitter
from router.budget import RetryBudget
from router.dispatch import Dispatcher
from router.freshen import freshen
from router.hedge import Hedger
from router.pick import Nobody
from router.record import Record
from router.reply import Holdings, Reply
from router.resident import bring, parts_of
from router.staging import Staging
from router.statistics import RouterStatistics
from router.steps import Read, Wait
from router.table import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from random import Random

    from fabric.memory.arena import Arena
    from fabric.transport import Answer
    from router.config import RouterConfig
    from router.dispatch import Attempt
    from router.learned import Kind
    from router.load import Page
    from router.record import Decision
    from router.staging import Staged
    from router.table import Command, Offer
    from router.workers import Worker, WorkerLink


if TYPE_CHECKING:
    Life = Generator[Attempt | Wait | Read, Answer | OverspillError | None, Reply]
    ReadPage = Callable[[Worker], Page | None]


class Core:
    """The state of one router. `clock` is monotonic seconds, `arena` its own memory; None where nothing is staged."""

    def __init__(
        self, client_id: int, config: RouterConfig, arena: Arena | None, rng: Random, clock: Callable[[], float]
    ) -> None:
        self.client_id = client_id
        self.config = config
        self.clock = clock
        self.rng = rng
        self.lock = Lock()
        self.changed = Condition(self.lock)
        self.table = Table(config)
        self.accounting = Accounting()
        self.budget = RetryBudget(config.retry_budget_ratio, config.retry_budget_min)
        self.holdings = Holdings()
        self.staging = Staging(arena, self._shared_arena, self.holdings.blamed, config.affinity_ms_max)
        self.closed = False
        self.racing: Callable[[Attempt], Answer] | None = None  # carries out, for a blocking caller, what may be hedged
        self.pages: ReadPage | None = None
        """Reads a worker's load page, in microseconds; None where no wire can, and reports come with answers."""
        self.readable: Callable[[Worker], bool] | None = None
        self.beside: Callable[[Read], None] | None = None
        """Begins to read pages beside a request that is about to be sent; never waits. None where nobody can."""
        self.pages_read = self.pages_unread = 0
        self._dispatcher = Dispatcher(client_id, config, self.table, self.accounting, self.lock, rng, clock)
        if config.explain_kept or config.explain_file:
            self._dispatcher.record = Record(max(config.explain_kept, 1), to_file=bool(config.explain_file))
        self.hedger = Hedger(config, self.table, self.lock, rng, clock) if config.hedge_ratio else None
        self._backoff_s = FullJitter(config.backoff_first_s, config.backoff_max_s, rng).after
        self._pid = os.getpid()

    def execute_with(self, execute: Callable[[tuple[Command, ...]], None]) -> None:
        """Names who carries out the table's commands; called before the first request."""
        self._dispatcher.execute = execute

    def check_usable(self) -> None:
        """Raises RouterClosed or RouterUsedAfterFork."""
        if self.forked:
            told = "this router belongs to the parent process; call Router.connect again in the child"
            raise errors.RouterUsedAfterFork(told)
        if self.closed:
            raise errors.RouterClosed("the router was closed; make another one with Router.connect")

    @property
    def forked(self) -> bool:
        """Whether this is a child's copy, whose thread and links stayed in the parent."""
        return os.getpid() != self._pid

    def admit(self, model: Any, timeout_s: Any, priority: Any) -> tuple[Offer, Deadline]:
        """Lets a request begin, or raises RouterClosed, RouterUsedAfterFork, InvalidArgument (a name or a timeout
        that is none, a priority that fits no byte), UnknownModel, Unavailable. What a user gave is of no type yet."""
        self.check_usable()
        if not isinstance(model, str):
            raise InvalidArgument(f"the model is {model!r}; give its name, a text")
        deadline = Deadline.after(timeout_s, self.clock())
        offer = self.offer(model)
        if not isinstance(priority, int) or not 0 <= priority <= 255:
            raise InvalidArgument(f"priority is {priority!r}; give a whole number from 0 to 255")
        return offer, deadline

    def offer(self, model: str) -> Offer:
        """Who offers the model, and what is known of it. Raises UnknownModel or Unavailable."""
        found = self.table.offers.get(model)  # one step for the interpreter, so it needs no lock
        if found is None:
            with self.lock:
                found = self.table.offer(model)
        return found

    def told(self, worker: Worker, page: Page, kind: Kind) -> None:
        """The load page of a worker was read for a request of this kind."""
        with self.lock:
            worker.ahead.reported(page.load, page.made_at_s, None, page.in_hand)
            if page.unit_ms:
                worker.speed.told(kind, page.unit_ms, page.made_at_s)

    def read(self, step: Read) -> None:
        """Carries out a `Read`: a worker whose page cannot be read now keeps what was known of it."""
        assert self.pages is not None, "asked for only where pages can be read"
        for worker in step.workers:
            self.was_read(worker, self.pages(worker), step.kind)

    def was_read(self, worker: Worker, page: Page | None, kind: Kind) -> None:
        """A page was read, or could not be."""
        if page is not None:
            self.pages_read += 1
            self.told(worker, page, kind)
        else:
            self.pages_unread += 1

    def _compares(self, model: str) -> bool:
        """Whether there is anybody to compare: most routers of one machine know one node, and pay for no look."""
        offer = self.table.offers.get(model)
        return offer is None or len(offer.everyone) > 1

    def _blamed(self, error: OverspillError) -> OverspillError:
        return self.holdings.blamed(error) if isinstance(error, ArenaFull) else error

    def life(
        self, model: str, staged: Staged, deadline: Deadline, priority: int, idempotent: bool, hint: float = 0.0
    ) -> Life:
        """The request, step by step; returns its reply or raises its final error. `hint`: its cost as the caller sees
        it, 0 for none."""
        attempts = Attempts(model, deadline, idempotent, self.config.attempts_max, self._backoff_s)
        retrying = False
        attempt: Attempt | Nobody | None = None
        outcome: Answer | OverspillError | None = None
        attempts.hint = hint
        body, attempts.needs = parts_of(staged)
        try:
            while True:
                if self.pages is not None and self._compares(model):
                    yield from freshen(self, attempts, body.layout.body_bytes)
                attempt = self._dispatcher.begin(model, body, priority, attempts)
                if isinstance(attempt, Nobody):
                    yield Wait(attempts.nobody(attempt.sentence(model), self.clock()), for_worker=True)
                    self._check_open(attempts)
                    attempts.woke()
                    continue
                try:
                    bring(attempt)
                    outcome = attempt.outcome = yield attempt
                finally:
                    self._dispatcher.end(attempt, attempts)
                assert outcome is not None, "an attempt that was sent has an outcome"
                if not isinstance(outcome, OverspillError):
                    attempts.answered()
                    if not isinstance(outcome.memory, bytes):
                        outcome = self.holdings.admit(outcome, model)
                    return Reply(outcome, attempt, attempts.count)
                if isinstance(outcome, ResidentMissing) and attempts.lacked():
                    continue
                if retrying:
                    self._end_retry()
                    retrying = False
                delay_s = attempts.failed(self._blamed(outcome), attempt.picked.worker.name, self.clock())
                while not (retrying := self._begin_retry()):
                    yield Wait(attempts.over_budget(self.clock()), for_worker=False)
                yield Wait(delay_s, for_worker=False)
                self._check_open(attempts)
                attempts.woke()
        finally:
            if retrying:
                self._end_retry()
            if attempts.request_no:  # it ends without an answer
                with self.lock:
                    self.accounting.leave(attempts.request_no)
            # The traceback of an error holds this frame: were the error held here, its memory would wait for the
            # garbage collector.
            attempt = outcome = None
            attempts.forget()

    def _check_open(self, attempts: Attempts) -> None:
        if self.closed:
            raise errors.RouterClosed("the router was closed while the request waited for a worker", attempts.fate)

    def _begin_retry(self) -> bool:
        with self.lock:
            return self.budget.take(self.accounting.active)

    def _end_retry(self) -> None:
        with self.lock:
            self.budget.give_back()

    def _shared_arena(self) -> Arena | None:
        """The arena of the first local node whose link is alive."""
        with self.lock:
            for worker in self.table.workers:
                link = worker.link
                if link is not None and worker.is_local and link.alive and link.arena is not None:
                    return link.arena
        return None

    def wait(self, step: Wait | Read) -> None:
        """Carries out a `Wait` in the calling thread, which the end of the router ends early; or a `Read`."""
        if isinstance(step, Read):
            self.read(step)
            return
        with self.changed:
            if step.for_worker and not self.closed:
                self.changed.wait(step.delay_s)
            else:
                self.changed.wait_for(lambda: self.closed, step.delay_s)

    def close(self) -> None:
        """Takes no new request, and wakes those that wait."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def explain(self, request_id: str) -> tuple[Decision, ...]:
        """The decisions of a request that are still kept. Raises ConfigError where none are kept."""
        record = self._dispatcher.record
        if record is None:
            raise errors.ConfigError("this router keeps no decisions; give RouterConfig(explain_kept=1000)")
        with self.lock:
            return record.of(request_id)

    def unwritten(self) -> list[Decision]:
        """Decisions that are to be written, once."""
        record = self._dispatcher.record
        if record is None:
            return []
        with self.lock:
            return record.take_unwritten()

    def let_go(self) -> tuple[WorkerLink, ...]:
        """Forgets workers and memory, so that the memory goes back though somebody keeps the router; returns the links
        that are to be ended."""
        with self.lock:
            links = tuple(worker.link for worker in self.table.workers if worker.link is not None)
            self.table.clear()
        self.beside = None
        self.staging.close()
        return links

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until no request is out; False if that took longer than `timeout_s`."""
        end_s = self.clock() + timeout_s
        with self.changed:
            while self.accounting.active:
                left_s = end_s - self.clock()
                if left_s <= 0.0:
                    return False
                self.changed.wait(min(left_s, 0.01))
        return True

    def statistics(self) -> RouterStatistics:
        """What is going on now."""
        held = self.holdings.held_bytes
        with self.lock:
            return RouterStatistics(
                active=self.accounting.active,
                retrying=self.budget.retrying,
                retries=self.budget.granted,
                retries_refused=self.budget.refused,
                replies_copied_out=self.holdings.copied_out,
                replies_held_bytes=held,
                workers=tuple(repr(worker) for worker in self.table.workers),
                panics=self._dispatcher.panics,
                bytes_sent=self._dispatcher.bytes_sent,
                pages_read=self.pages_read,
                pages_unread=self.pages_unread,
                residents_sent=self._dispatcher.residents.sent,
                residents_missed=self._dispatcher.residents.missed,
            )
