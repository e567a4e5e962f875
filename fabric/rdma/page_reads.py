"""Reads a node's load page over RDMA: our line first, then the page, and again when a write was met.

The NIC copies while the node writes, so what it brings may be torn; the checks of the page tell. This module never
decides what a report is worth. Read `fabric/load_page.py` for the page itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, NodeLost, Unavailable
from fabric.load_page import LINES_AT, LINES_BYTES, TRIES_MAX, Reading, line_at, read_both

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import RegionNote


def page_life(
    connection: Connection,
    page: RegionNote,
    client_id: int,
    node_epoch: int,
    deadline: Deadline,
    ring: Callable[[], None],
) -> Generator[None, None, Reading]:  # fmt: skip
    """One reading; yields to wait. Raises Unavailable, DeadlineExceeded, NodeLost."""
    if not page.nbytes:
        raise Unavailable("the node publishes no load page; its answers tell its load")
    read: list[bytes] = []

    def done(raw: bytes) -> None:
        read.append(raw)
        ring()

    for _ in range(TRIES_MAX):
        connection.read(page, ((line_at(client_id), LINES_BYTES), (0, LINES_AT)), done)
        while not read:
            if not connection.live:
                raise NodeLost(str(connection.error), Fate.NEVER_RAN)
            if deadline.expired(time.monotonic()):
                raise DeadlineExceeded("the load page was not read in time; give more time", Fate.NEVER_RAN)
            yield
        raw = read.pop()
        reading = read_both(raw[:LINES_BYTES], raw[LINES_BYTES:], client_id, node_epoch)
        if reading is not None:
            return reading
    raise Unavailable(f"the load page was being written at each of {TRIES_MAX} reads; its answers tell its load")
