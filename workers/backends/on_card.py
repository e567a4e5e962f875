"""Memory on a card as libraries take it: an address with shape and dtype, by CUDA's array interface.

CuPy's `asarray` and torch's `as_tensor` make arrays over it without a copy. It is good until `execute` returns, and
allocates nothing. Read `workers/backends/base.py` for where a model meets it.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, slots=True)
class CardArray:
    """A contiguous array on the executor's card. BF16 has dtype uint16, its bits."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Its bytes."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """Version 3 of the interface, without a stream: what lies there is ready."""
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
            "stream": None,
        }
