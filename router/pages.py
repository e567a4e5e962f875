"""Reads nodes' load pages over links: before a pick where that takes microseconds, else beside requests.

Shared memory and, over rdma, the NIC are read before a pick. Over rpc a read takes a call's time, and the background
loop may not wait for the NIC, which it serves itself: there `router/beside.py` reads in threads. This module decides
nothing: `router/fresh.py` says whom to read. Read `router/freshen.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from fabric.deadline import Deadline
from fabric.errors import OverspillError
from fabric.transport import WireName
from router.load import Page

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.load_page import Reading
    from router.workers import Worker

READ_MAX_S = 0.002
"""A read by the NIC takes some tens of microseconds; one that takes this long is given up."""
READ_BESIDE_MAX_S = 0.25
"""Nobody waits for a read beside a request; one that takes this long says that the node has other worries."""
AGE_S = 0.002
"""As old as a page may be when it is read: a node writes it so soon after a change."""


@runtime_checkable
class ReadsPages(Protocol):
    """A link that can read its node's load page."""

    def read_page(self, deadline: Deadline) -> Reading:
        """One reading. Raises OverspillError."""


class Pages:
    """The reader of one router. `clock` is monotonic seconds."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def can(self, worker: Worker) -> bool:
        """Whether the wire in use reads pages without asking the node."""
        wire = worker.link.wire if worker.link is not None else None
        return wire is WireName.LOCAL or (wire is WireName.RDMA and not _on_a_loop())

    def read(self, worker: Worker) -> Page | None:
        """A worker's page; None where it cannot be read now."""
        return self._read(worker, READ_MAX_S) if self.can(worker) else None

    def read_beside(self, worker: Worker) -> Page | None:
        """The same over any wire, in a thread that may wait."""
        return self._read(worker, READ_BESIDE_MAX_S)

    def _read(self, worker: Worker, for_s: float) -> Page | None:
        link: object = worker.link
        if not isinstance(link, ReadsPages):
            return None
        begun_s = self._clock()
        try:
            reading = link.read_page(Deadline(begun_s + for_s))
        except OverspillError:
            return None
        # A read over a network shows the page as it was about half of its way ago.
        return Page(reading.load, (begun_s + self._clock() - AGE_S) / 2.0, in_hand=reading.in_hand)


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
