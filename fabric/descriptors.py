"""Reads of tensor descriptors only what tells whether two requests could run together: a node can, without numpy.

The bytes are those of `fabric/layout.py`, which whoever touches tensors reads in full and checks; here a descriptor
that looks wrong is no fault but a request that runs by itself. This module never reads a body. Read that one next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

COUNT: Final = struct.Struct("<HBxQ")  # tensors, residents among them, body bytes
TENSOR: Final = struct.Struct("<BBBxxxxxQQ")  # bytes of the name, dtype, dimensions, offset, bytes


@lru_cache(maxsize=256)  # callers of one model ask in few shapes, and a hostile one's may be large
def rows_and_kind(encoded: bytes) -> tuple[int, bytes]:
    """(items along the first dimension, what else there is of each tensor) of a request's descriptors. Requests of the
    same kind differ in the number of their items only. (0, b"") where the tensors do not have the same number of items,
    or refer to what lies elsewhere, or the bytes are no descriptors."""
    rows, kinds, at = -1, [], COUNT.size
    try:
        count, residents, _ = COUNT.unpack_from(encoded, 0)
        for _ in range(count):
            name_bytes, dtype, ndim, _, _ = TENSOR.unpack_from(encoded, at)
            at += TENSOR.size
            shape = struct.unpack_from(f"<{ndim}q", encoded, at)
            at += 8 * ndim
            name = encoded[at : at + name_bytes]
            at += name_bytes
            if not shape or residents or shape[0] != (shape[0] if rows < 0 else rows):
                return 0, b""
            rows = shape[0]
            kinds.append(struct.pack(f"<HBB{ndim - 1}q", name_bytes, dtype, ndim, *shape[1:]) + name)
    except struct.error:
        return 0, b""
    return (rows, b"".join(sorted(kinds))) if rows > 0 else (0, b"")
