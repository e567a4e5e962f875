"""Puts one router together, and takes it apart: registry, links, the background thread, and the core between them.

It is the only file that knows which real link is used. A router that is forgotten without `close` is taken apart by its
finalizer, which may run inside the garbage collector while anybody holds any lock: it therefore takes none, and only
asks the background thread to do the work. This module sends no request. Read `router/links.py` and `router/core.py`.
"""

from __future__ import annotations

import asyncio
import secrets
import time
import weakref
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from discovery.registry import open_registry
from fabric.deadline import Deadline
from fabric.errors import AccessDenied, ConfigError, Fate, NodeLost, OverspillError
from fabric.link.link import Link
from fabric.link.loop import LoopThread
from fabric.memory.arena import Arena
from fabric.rdma.engine import Engine
from router.beside import Beside
from router.config import RouterConfig
from router.core import Core
from router.freshen import read_for_copy
from router.links import Links
from router.pages import Pages
from router.race import racing

if TYPE_CHECKING:
    from collections.abc import Callable

    from discovery.instance import Instance
    from fabric.link.wires import LinkConfig
    from router.statistics import RouterStatistics
    from router.workers import WorkerLink

CLOSED = "the router was closed while the link was opened"
ENGINE_CLOSE_S = 3.0
"""Twice what connections need to come to their end."""


class Opened:
    """The parts of one router that is open."""

    def __init__(
        self, core: Core, links: Links, dials: Dials, background: LoopThread, engine: Engine, beside: Beside
    ) -> None:
        self.core = core
        self._dials = dials
        self._beside = beside
        self.background = background
        self._engine = engine
        self._links = links
        self._forgotten: weakref.finalize[..., object] | None = None

    def close_with(self, owner: object) -> None:
        """Takes the router apart when `owner` is forgotten."""
        self._forgotten = weakref.finalize(owner, self._forget)

    def statistics(self) -> RouterStatistics:
        """What is going on now, and how old what the registry said is."""
        with self.core.lock:
            links = [(worker.name, worker.link) for worker in self.core.table.workers]
        troubles = [(name, link.trouble) for name, link in links if isinstance(link, Link)]
        hedging = self.core.hedger.budget if self.core.hedger is not None else None
        return replace(
            self.core.statistics(),
            hedges=hedging.sent if hedging is not None else 0,
            hedges_refused=hedging.refused if hedging is not None else 0,
            wire_troubles=tuple(f"{name}: {trouble}" for name, trouble in troubles if trouble),
            registry_age_s=self._links.registry_age_s(),
            registry_trouble=self._links.registry_trouble(),
        )

    def refusal(self) -> str:
        """What to tell where each node that is known refuses this router; else nothing."""
        return self._links.refusal()

    def close(self) -> None:
        """Takes no new request, lets running ones end, then ends links and thread. Safe to call twice."""
        if self.core.forked or self._forgotten is None or self._forgotten.detach() is None:
            return
        self.end()

    def end(self) -> None:
        """The same for one that nobody owns yet."""
        self._links.end_watch()
        self.core.close()
        self.core.wait_idle(self.core.config.close_timeout_s)
        self._end_links()
        self._beside.close(wait=True)  # their links have ended, so whoever still waits is told so
        with suppress(
            OverspillError, TimeoutError
        ):  # it is closed already, or too busy: the device goes with the process
            self.background.submit(self._close_engine()).result(ENGINE_CLOSE_S)
        self.background.close()

    async def _close_engine(self) -> None:
        self._engine.close()

    def _end_links(self) -> None:
        if self.core.hedger is not None:
            self.core.hedger.let_go()
        for link in (*self._dials.end(), *self.core.let_go()):
            link.abort("the router was closed")

    def _forget(self) -> None:
        if self.core.forked:
            return
        if self.background.loop.is_closed():  # the program ends, and its thread ended first: nobody holds a lock
            self._take_apart()
        else:
            self.background.call_soon(self._take_apart)

    def _take_apart(self) -> None:
        self._links.end_watch()
        self.core.close()
        self._end_links()
        self._beside.close(wait=False)
        self._engine.close()
        self.background.close()


def open_router(url: str, config: RouterConfig | None, timeout_s: float) -> Opened:
    """Opens all parts, and waits `timeout_s` at most for the first links. Raises ConfigError, RegistryUnavailable,
    AccessDenied where each node refuses this router, and InvalidArgument for a `timeout_s` that is no time."""
    opened = _all_parts(url, config or RouterConfig(), timeout_s)
    refusal = opened.refusal()
    if refusal:
        opened.end()
        del opened  # the error's traceback holds this frame, and must not hold the router's memory
        raise AccessDenied(refusal)
    return opened


def _all_parts(url: str, config: RouterConfig, timeout_s: float) -> Opened:
    end = Deadline.after(timeout_s, time.monotonic())
    config.link.check_files()
    _check_writable(config.explain_file)
    registry = open_registry(url)
    # Address space, not memory: pages come when somebody stages there, or a large reply lands there over rpc.
    arena = Arena.create(config.arena_bytes)
    dice = Random(config.seed)  # noqa: S311 - hides nothing
    core = Core(secrets.randbits(64) or 1, config, arena, dice, time.monotonic)
    pages = Pages(time.monotonic)
    core.pages, core.readable = pages.read, pages.can
    beside = Beside(pages.read_beside, core.was_read)
    core.beside = beside.begin
    background = LoopThread()
    if core.hedger is not None:
        core.racing = racing(core.hedger, background.submit)
        core.hedger.begin_read = partial(read_for_copy, core)
    engine = Engine(background.loop, config.link.rdma_config)  # opens no device before a node offers rdma
    dials = Dials(core, background, arena, engine)
    links = Links(core, background, dials.open_link)
    try:
        links.start(registry)
    except BaseException:  # whatever it was, the thread must not outlive it
        background.close()
        arena.close_fd()
        raise
    opened = Opened(core, links, dials, background, engine, beside)
    try:
        links.wait_dialled(end.remaining_s(time.monotonic()))
    except BaseException:  # Ctrl-C: nobody else will ever close it
        opened.end()
        raise
    return opened


def _check_writable(explain_file: str) -> None:
    """A disk that fails later costs decisions and no request; a path that never worked is a wrong setting."""
    if explain_file:
        try:
            Path(explain_file).open("ab").close()
        except OSError as error:
            raise ConfigError(
                f"explain_file {explain_file} cannot be written ({error.strerror}); give another path"
            ) from None


class Dials:  # mutable: links that are being opened come and go
    """Opens links for one router, and knows those that wait for their node, so that nobody waits on after its end."""

    def __init__(self, core: Core, background: LoopThread, arena: Arena, engine: Engine) -> None:
        self._core = core
        self._background = background
        config = replace(core.config.link, arena=arena, engine=engine, seed=core.rng.getrandbits(32))
        self._config: LinkConfig | None = config
        self._open: set[Link] = set()

    async def open_link(self, instance: Instance, may_have_died: Callable[[], None]) -> WorkerLink:
        """A link with a live wire. Raises what kept it from opening."""
        return await asyncio.to_thread(self._open_in_thread, instance, may_have_died)

    def end(self) -> list[Link]:
        """Opens no link any more, and holds nothing of the router's memory; those that are being opened, for whoever
        ends the others too."""
        with self._core.lock:
            self._config = None
            return list(self._open)

    def _open_in_thread(self, instance: Instance, may_have_died: Callable[[], None]) -> WorkerLink:
        made: list[Link] = []

        def begun(link: Link) -> None:
            made.append(link)
            with self._core.lock:
                self._open.add(link)
                ended = self._config is None
            if ended:
                link.abort(CLOSED)

        config = self._config
        if config is None:
            raise NodeLost(CLOSED, Fate.NEVER_RAN)
        try:
            link = Link.connect(
                instance, self._core.client_id, config, self._background, on_change=lambda _: may_have_died(),
                made=begun,
            )  # fmt: skip
        finally:
            with self._core.lock:
                self._open.difference_update(made)
        if self._core.closed:  # whoever waited for it was cancelled
            link.abort(CLOSED)
        return link
