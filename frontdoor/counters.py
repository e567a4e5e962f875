"""What the front door counts about itself, for the metrics page.

The figures of models are their engine's (`Engine.statistics`). This module never decides and never prints. Read
`frontdoor/metrics.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from collections import Counter


class Counters:  # mutable: counts
    """Since the front door began: requests by protocol and status, and the bytes of tensors by the way they took."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """(protocol, status), where the status of a request that was answered is OK."""
        self.bytes_in: Counter[str] = Counter()
        """By `raw`, `shm` or `cuda`."""
        self.bytes_out: Counter[str] = Counter()
        self.running = 0
        """Inferences that are on their way now."""
