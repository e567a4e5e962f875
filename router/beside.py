"""Reads load pages beside requests, over whatever wire leads there: for the requests that follow, not for this one.

A page that must be asked for over a network takes about as long as a short call, so nobody waits for it: while a
request runs, a few threads of the router's own read the workers that the core named, each at most once at a time. It is
what a router without shared memory or rdma has in place of a read before the pick. This module decides nothing:
`router/fresh.py` says whom to read and how often. Read `router/pages.py` next.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.learned import Kind
    from router.load import Page
    from router.steps import Read
    from router.workers import Worker

    Tell = Callable[[Worker, Page | None, Kind], None]

THREADS = 4
"""Reads at the same time: each waits for a network, so a few serve a few thousand reads a second."""


class Beside:  # mutable: who is being read, and the threads once they are needed
    """The reads of one router. `read` gives a worker's page or None, in a bounded time; `tell` takes it in."""

    __slots__ = ("_closed", "_lock", "_read", "_reading", "_tell", "_threads")

    def __init__(self, read: Callable[[Worker], Page | None], tell: Tell) -> None:
        self._read, self._tell = read, tell
        self._lock = Lock()
        self._reading: set[Worker] = set()
        self._threads: ThreadPoolExecutor | None = None
        self._closed = False

    def begin(self, step: Read) -> None:
        """Begins to read these workers, but for those that are being read; never waits."""
        with self._lock:
            if self._closed:
                return
            wanted = [worker for worker in step.workers if worker not in self._reading]
            if not wanted:
                return
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, "overspill-read")
            with suppress(RuntimeError):  # no thread can be had, or the interpreter ends: the request goes on
                for worker in wanted:
                    self._threads.submit(self._one, worker, step.kind)
                    self._reading.add(worker)

    def _one(self, worker: Worker, kind: Kind) -> None:
        try:
            page = None if self._closed else self._read(worker)
            if not self._closed:
                self._tell(worker, page, kind)
        finally:
            with self._lock:
                self._reading.discard(worker)

    def close(self, *, wait: bool) -> None:
        """Reads nothing more; with `wait`, no thread is left when it returns."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, None
        if threads is not None:
            with suppress(RuntimeError):  # the interpreter ends
                threads.shutdown(wait=wait, cancel_futures=True)
