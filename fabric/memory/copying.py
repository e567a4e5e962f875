"""Copies of tensors into memory that another process reads: large ones in pieces of half a core's second-level cache.

Where a copy is larger than that cache, glibc (2.36, x86) loads and stores, and each store first fetches the line that
it overwrites, from the core that read it last. Below, it takes the processor's string instruction, which fetches
nothing. 1 MiB into lines that another core had read took 120 us by one copy, and 26 in pieces, in hours in which a
host ran a guest's two cores far apart; 21 and 18 in others. Between two pieces other threads may run. This module never
allocates. Read `fabric/memory/arena.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

PIECE_BYTES: Final = 512 << 10
"""Half of the second-level cache of a core of the smaller kind, 1 MiB. A piece costs a microsecond of Python."""


def copy_array(target: Array, source: Array) -> None:
    """Copies `source` to `target`, as `numpy.copyto` does.

    Raises what `numpy.copyto` raises.
    """
    if (
        target.nbytes <= PIECE_BYTES
        or source.dtype != target.dtype
        or source.shape != target.shape
        or not (source.flags.c_contiguous and target.flags.c_contiguous)
    ):
        np.copyto(target, source)
        return
    into, of, step = target.reshape(-1), source.reshape(-1), PIECE_BYTES // target.itemsize
    for at in range(0, target.size, step):
        np.copyto(into[at : at + step], of[at : at + step])


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copies bytes of the same number."""
    if target.nbytes <= PIECE_BYTES:
        target[:] = source
    else:
        copy_array(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
