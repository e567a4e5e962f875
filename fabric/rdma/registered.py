"""Memory that the NIC may touch, counted in the budget as long as it may.

This module never decides what is registered: each part of a connection knows its own. Read `fabric/rdma/pairs.py` next.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from fabric.rdma.populate import populate

if TYPE_CHECKING:
    import mmap

    from fabric.rdma.budget import Budget
    from fabric.rdma.domain import Domain, Memory, Use


def address_of(memory: mmap.mmap) -> int:
    """Where mapped memory begins."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Registered:  # mutable: registered, then closed
    """Memory that the NIC may touch, counted in the budget."""

    __slots__ = ("_budget", "address", "lkey", "memory", "nbytes", "rkey")

    def __init__(self, domain: Domain, budget: Budget, address: int, nbytes: int, use: Use) -> None:
        budget.take(nbytes)
        try:
            populate(address, nbytes)
            self.memory: Memory | None = domain.register(address, nbytes, use)
        except BaseException:  # whatever it was, nothing may stay behind it
            budget.give_back(nbytes)
            raise
        self._budget = budget
        self.address, self.nbytes = address, nbytes
        self.lkey, self.rkey = self.memory.lkey, self.memory.rkey

    def close(self) -> None:
        """Nobody reaches it any more. Harmless twice."""
        memory, self.memory = self.memory, None
        if memory is not None:
            memory.close()
            self._budget.give_back(self.nbytes)
