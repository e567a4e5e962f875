"""Gives back the memory that GPU libraries keep for later: of those that models have imported, and no others.

A library that nobody imported is never imported here. Read `workers/station.py` for when.
"""

from __future__ import annotations

import gc
import sys
from contextlib import suppress
from typing import Any


def trim_pools() -> None:
    """Empties the pools of CuPy and torch. What is in use stays."""
    gc.collect()
    cupy: Any = sys.modules.get("cupy")
    torch: Any = sys.modules.get("torch")
    with suppress(Exception):  # to give back less than was kept is no error, whatever the library says
        if cupy is not None:
            cupy.get_default_memory_pool().free_all_blocks()
            cupy.get_default_pinned_memory_pool().free_all_blocks()
    with suppress(Exception):
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
