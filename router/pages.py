"""Reads nodes' load pages over links, where that takes microseconds: over shared memory, and by the NIC over rdma.

Over rpc a read takes a call's time, so reports that come with answers serve there. The background loop may not wait for
the NIC, which it serves itself: what it sends is picked by pages of this host. This module decides nothing:
`router/fresh.py` says whom to read. Read `router/freshen.py` next.
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
        link: object = worker.link
        if not self.can(worker) or not isinstance(link, ReadsPages):
            return None
        now = self._clock()
        try:
            reading = link.read_page(Deadline(now + READ_MAX_S))
        except OverspillError:
            return None
        return Page(reading.load, now - AGE_S / 2.0, in_hand=reading.in_hand)


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
