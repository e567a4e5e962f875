"""Counts of one router at one moment.

Read `router/core.py` next, which fills them in.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RouterStatistics:
    """Counts of one router at one moment. `workers` has one line for each worker."""

    active: int
    retrying: int
    retries: int
    retries_refused: int
    replies_copied_out: int
    replies_held_bytes: int
    workers: tuple[str, ...]
    panics: int = 0
    """Picks for which no worker was usable, though some could be reached."""
    bytes_sent: int = 0
    """Bytes of inputs that attempts have sent, or lent to a local node."""
    residents_sent: int = 0
    """Resident inputs that went along with a request, because the node was not known to keep them."""
    residents_missed: int = 0
    """Requests that a node gave back because it no longer kept a resident."""
    pages_read: int = 0
    """Load pages that were read for requests; `pages_unread` could not be, and the reports of answers counted."""
    pages_unread: int = 0
    hedges: int = 0
    """Copies of late requests that were sent; `hedges_refused` counts how often one was not, the budget being spent."""
    hedges_refused: int = 0
    registry_age_s: float = float("inf")
    """Seconds since the registry last answered."""
    wire_troubles: tuple[str, ...] = ()
    """Why links do not use their better wire, a sentence for each that has one and does not."""
    registry_trouble: str = ""
    """Why the list of workers may be out of date, as a sentence; nothing where it is not."""
