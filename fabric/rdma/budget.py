"""How much memory this process may pin for its peers. Who finds no room stays on rpc, and is told why.

This module never registers anything: whoever does takes its bytes here first. Read `fabric/rdma/connection.py` next.
"""

from __future__ import annotations

import os
import resource
from threading import Lock

from fabric.errors import ResourceExhausted

_SHARE = 4


class Budget:  # mutable: counts
    """Bytes that are pinned, of `pinned_bytes_max`; 0 takes a quarter of the machine's memory."""

    def __init__(self, pinned_bytes_max: int = 0) -> None:
        self.pinned_bytes_max = pinned_bytes_max or machine_bytes() // _SHARE
        self._lock = Lock()
        self._pinned = 0
        self.regions = 0

    @property
    def pinned_bytes(self) -> int:
        """What is taken now."""
        return self._pinned

    def has_room(self, nbytes: int) -> bool:
        """Whether so much could be taken now."""
        return self._pinned + nbytes <= self.pinned_bytes_max

    def take(self, nbytes: int) -> None:
        """Takes `nbytes`. Raises ResourceExhausted when they are over the budget."""
        with self._lock:
            if self._pinned + nbytes > self.pinned_bytes_max:
                raise ResourceExhausted(
                    f"{nbytes} bytes more for RDMA would pass pinned_bytes_max ({self._pinned} of"
                    f" {self.pinned_bytes_max} are pinned); raise it, or stay on rpc"
                )
            self._pinned += nbytes
            self.regions += 1

    def give_back(self, nbytes: int) -> None:
        """Those are not pinned any more."""
        with self._lock:
            assert self._pinned >= nbytes, "more given back than taken"
            self._pinned -= nbytes
            self.regions -= 1


def machine_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def memlock_bytes() -> int:
    """What this process may pin by the kernel's limit; all memory where there is none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return machine_bytes() if soft == resource.RLIM_INFINITY else soft
