"""Brings memory in before it is registered, without the interpreter's lock.

Registering pins every page, and fresh ones are made and zeroed first: 160 ms for a region of 256 MiB, for all of which
pyverbs holds the interpreter's lock, so that nothing else of a service ran. With its pages there it takes 27. This
module never registers. Read `fabric/rdma/registered.py` next.
"""

from __future__ import annotations

import ctypes
from typing import Final

_MADV_POPULATE_WRITE: Final = 23
"""Linux 5.14; an earlier one refuses it, and registering brings the pages in as before."""
# Once: each library object of ctypes is garbage that only the collector finds. It lets go of the interpreter's lock.
_MADVISE: Final = ctypes.CDLL(None).madvise
LEAST_BYTES: Final = 1 << 20
"""Less is registered in well under a millisecond."""


def populate(address: int, nbytes: int) -> None:
    """Makes the pages of mapped memory, where they are not there yet; `address` is that of a page. Never raises."""
    if nbytes >= LEAST_BYTES:
        _MADVISE(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), _MADV_POPULATE_WRITE)
