"""Puts one router together, and takes it apart: registry, links, the background thread, and the core between them.

It is the only file that knows which real link is used. A router that is forgotten without `close` is taken apart by its
finalizer, which may run inside the garbage collector while anybody holds any lock: it therefore only asks the
background thread to do it. This module sends no request. Read `router/links.py` and `router/core.py` next.
"""

from __future__ import annotations

import secrets
import time
import weakref
from random import Random
from typing import TYPE_CHECKING

from discovery.registry import open_registry
from fabric.deadline import Deadline
from router.config import RouterConfig
from router.core import Core
from router.links import Links

if TYPE_CHECKING:
    from fabric.link import LoopThread

    from discovery.instance import Instance
    from router.workers import WorkerLink


class Opened:
    """The parts of one router that is open."""

    def __init__(self, core: Core, links: Links, background: LoopThread) -> None:
        self.core = core
        self.links = links
        self.background = background
        self._forgotten: weakref.finalize[[], object] | None = None

    def close_with(self, owner: object) -> None:
        """Takes the router apart when `owner` is forgotten, or the process ends."""
        self._forgotten = weakref.finalize(owner, self._forget)

    def close(self) -> None:
        """Takes no new request, lets running ones end, then ends links and thread. Safe to call twice."""
        if self._forgotten is None or self._forgotten.detach() is None or self.core.forked:
            return
        core = self.core
        self.links.end_watch()
        core.close()
        core.wait_idle(core.config.close_timeout_s)
        self._end_links()
        self.background.close()

    def _end_links(self) -> None:
        for worker in self.core.table.workers:
            if worker.link is not None:
                worker.link.abort("the router was closed")
        self.core.staging.close()

    def _forget(self) -> None:
        if not self.core.forked:
            self.background.close()


def open_router(url: str, config: RouterConfig | None, timeout_s: float) -> Opened:
    """Opens all parts, and waits `timeout_s` at most for the first links. Raises ConfigError, RegistryUnavailable,
    InvalidArgument for a `timeout_s` that is no time."""
    from fabric.link import Link, LoopThread

    config = config or RouterConfig()
    end = Deadline.after(timeout_s, time.monotonic())
    registry = open_registry(url)
    core = Core(secrets.randbits(64) or 1, config, Random(config.seed), time.monotonic)  # noqa: S311 - dice, no secret
    background = LoopThread()

    async def open_link(instance: Instance) -> WorkerLink:
        deadline = Deadline.after(config.dial_timeout_s, time.monotonic())
        return await Link.connect(instance, core.client_id, deadline, background)

    links = Links(core, background, open_link)
    try:
        links.start(registry)
    except BaseException:  # whatever it was, the thread must not outlive it
        background.close()
        raise
    links.wait_dialled(end.remaining_s(time.monotonic()))
    return Opened(core, links, background)
