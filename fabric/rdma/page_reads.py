"""Reads a node's load page over RDMA: our line first, then the page, and again when a write was met.

The NIC copies while the node writes, so what it brings may be torn; the checks of the page tell. This module never
decides what a report is worth. Read `fabric/load_page.py` for the page itself.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate, NodeLost, Unavailable
from fabric.frame import Load
from fabric.load_page import LINE_BYTES, LINES_AT, PROBES, line_at, read_line, read_report

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from fabric.deadline import Deadline
    from fabric.rdma.connection import Connection
    from fabric.rdma.heads import RegionNote

TRIES_MAX = 8
"""Under a writer that never pauses about half of the reads of soft-RoCE are torn: one in 256 gives up."""
_LINES_BYTES = PROBES * LINE_BYTES


def page_life(
    connection: Connection, page: RegionNote, client_id: int, deadline: Deadline, ring: Callable[[], None]
) -> Generator[None, None, Load]:
    """One reading; yields to wait. Raises Unavailable, DeadlineExceeded, NodeLost."""
    if not page.nbytes:
        raise Unavailable("the node publishes no load page; its answers tell its load")
    read: list[bytes] = []

    def done(raw: bytes) -> None:
        read.append(raw)
        ring()

    for _ in range(TRIES_MAX):
        connection.read(page, ((line_at(client_id), _LINES_BYTES), (0, LINES_AT)), done)
        while not read:
            if not connection.live:
                raise NodeLost(str(connection.error), Fate.NEVER_RAN)
            if deadline.expired(time.monotonic()):
                raise DeadlineExceeded("the load page was not read in time; give more time", Fate.NEVER_RAN)
            yield
        raw = read.pop()
        accepted, report = read_line(raw[:_LINES_BYTES], client_id), read_report(raw[_LINES_BYTES:])
        if accepted is not None and report is not None:
            return Load(report.sequence, accepted, report.outstanding_us, report.executors)
    raise Unavailable(f"the load page was being written at each of {TRIES_MAX} reads; its answers tell its load")
