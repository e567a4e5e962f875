"""Keeps a link open to every worker that discovery names, on the background thread.

It carries out what the table orders: a `Dial` opens a link and tries again with doubling, jittered waits (tenacity's
loop with our own seeded jitter) until it is open or nobody wants it; a `Drop` ends a link. Callers never wait for a
dial: they are told of a worker when its link is open, and that it is gone at the moment its link knows. This module
decides nothing and sends no request. Read `router/opening.py` next.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from fabric.errors import AccessDenied, OverspillError, RouterClosed
from router.backoff import FullJitter
from router.table import Dial
from router.workers import State

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from concurrent.futures import Future

    from discovery.instance import Change, Instance
    from discovery.registry import Registry, Watch
    from router.core import Core
    from router.table import Command
    from router.workers import Worker, WorkerLink

    OpenLink = Callable[[Instance, Callable[[], None]], Awaitable[WorkerLink]]
    """Opens a link to an instance; the second argument is to be called when that link may have died."""


class Background(Protocol):
    """The background thread, as far as this file needs it."""

    def submit(self, coroutine: Coroutine[object, object, None]) -> Future[None]:
        """Runs a coroutine on the loop; safe from any thread."""


class Links:
    """The links of one router."""

    def __init__(
        self,
        core: Core,
        background: Background,
        open_link: OpenLink,
    ) -> None:
        self._core = core
        self._background = background
        self._open_link = open_link
        self._watch: Watch | None = None
        self._unanswered: set[Worker] = set()
        self._refused: dict[Worker, str] = {}  # why: an error would hold its frames
        core.execute_with(self.execute)

    def start(self, registry: Registry) -> None:
        """Begins to watch. The present list is dialled before it returns. Raises RegistryUnavailable."""
        self._watch = registry.watch(self._changed)
        self._background.submit(self._supervise())

    def _changed(self, changes: tuple[Change, ...]) -> None:
        core = self._core
        with core.changed:
            if core.closed:
                return
            commands = core.table.changed(changes)
            self._unanswered.update(command.worker for command in commands if isinstance(command, Dial))
            core.changed.notify_all()
        self.execute(commands)

    def wait_dialled(self, timeout_s: float) -> None:
        """Waits until each worker's first dial came to an end, well or badly, for `timeout_s` at most."""
        with self._core.changed:
            self._core.changed.wait_for(lambda: not self._unanswered, timeout_s)

    def refusal(self) -> str:
        """What to tell where there are nodes, and each of them refuses this router; else nothing."""
        with self._core.lock:
            told = [self._refused.get(worker, "") for worker in self._core.table.workers]
        if not told or not all(told):
            return ""
        nodes = "the only node" if len(told) == 1 else f"each of the {len(told)} nodes"
        return f"{nodes} of this registry refuses this router: {told[0]}"

    def execute(self, commands: tuple[Command, ...]) -> None:
        """Carries out what the table ordered; safe from any thread, never blocks."""
        for command in commands:
            if isinstance(command, Dial):
                with suppress(OverspillError):  # the thread has ended: nobody wants a link any more
                    self._background.submit(self._dial(command.worker))
            else:
                command.link.abort(command.reason)

    async def _dial(self, worker: Worker) -> None:
        config = self._core.config
        retrying = AsyncRetrying(
            wait=FullJitter(config.dial_first_s, config.dial_max_s, self._core.rng),
            stop=lambda _: not self._wanted(worker),
            retry=retry_if_exception_type(OverspillError),
            before_sleep=lambda state: self._failed_once(worker, state),
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            link: WorkerLink = await retrying(self._open_link, worker.instance, lambda: self._look(worker))
        except OverspillError:  # nobody wants it any more
            self._refused.pop(worker, None)
            self._answered(worker)
            return
        self._opened(worker, link)

    def _opened(self, worker: Worker, link: WorkerLink) -> None:
        core = self._core
        with core.changed:
            closed = core.closed
            commands = () if closed else core.table.link_up(worker, link)
            self._unanswered.discard(worker)
            self._refused.pop(worker, None)
            core.changed.notify_all()
        if closed:
            link.abort("the router was closed while the link was opened")
        self.execute(commands)
        self._look(worker)  # it may have died between its opening and now

    def _look(self, worker: Worker) -> None:
        """Takes a worker out whose link died, though no request of ours told so; notes a change of its wire."""
        commands: tuple[Command, ...] = ()
        with self._core.lock:
            link = worker.link
            if link is not None and not link.alive and not self._core.closed:
                commands = self._core.table.link_lost(worker, link)
            self._core.table.wire_changed(worker)
        self.execute(commands)

    async def _supervise(self) -> None:
        """Notes which nodes are silent: a pick must not ask each link for it."""
        while not self._core.closed:
            for worker in self._core.table.workers:
                link = worker.link
                worker.silent = link is not None and link.suspect
            if self._core.config.explain_file:
                await asyncio.to_thread(self._write_decisions)
            await asyncio.sleep(self._core.config.supervise_s)

    def _write_decisions(self) -> None:
        """Appends the decisions that were made since the last time; a disk that refuses them fails no request."""
        lines = [f"{decision.as_line()}\n" for decision in self._core.unwritten()]
        if lines:
            with suppress(OSError), Path(self._core.config.explain_file).open("a", encoding="utf-8") as file:
                file.writelines(lines)

    def _failed_once(self, worker: Worker, state: RetryCallState) -> None:
        failure = state.outcome.exception() if state.outcome is not None else None
        worker.trouble = str(failure) if failure is not None else ""
        if isinstance(failure, AccessDenied):
            self._refused[worker] = worker.trouble
        self._answered(worker)

    def _answered(self, worker: Worker) -> None:
        with self._core.changed:
            self._unanswered.discard(worker)
            self._core.changed.notify_all()

    def _wanted(self, worker: Worker) -> bool:
        return not self._core.closed and worker.state is State.PENDING

    def registry_age_s(self) -> float:
        """Seconds since the registry last answered."""
        return self._watch.age_s() if self._watch is not None else float("inf")

    def registry_trouble(self) -> str:
        """Why the list of workers may be out of date; nothing where it is not."""
        return self._watch.trouble() if self._watch is not None else ""

    def end_watch(self) -> None:
        """Stops listening to the registry, and lets go of what opens links."""
        if self._watch is not None:
            self._watch.close()
        if self._core.config.explain_file:
            self._write_decisions()
        self._open_link = _closed


async def _closed(_: Instance, __: Callable[[], None]) -> WorkerLink:
    raise RouterClosed("the router was closed")
