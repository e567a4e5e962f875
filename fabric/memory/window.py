"""The memory object under a lease's arrays, whose end is the end of the loan.

Its own `__del__` tells of that end: `weakref.finalize` does the same in twice the time, and three of them stood on the
way of each large request. This module stays interpreted, since a compiled function is no method of a class that is made
at run time. It never decides who lends. Read `fabric/memory/lease.py` next.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any


def give_back(window: Any) -> None:
    """Hands the window's `slot` to its `taker`, once, from whatever thread."""
    parts: dict[str, Any] = window.__dict__
    slot = parts.pop("slot", None)  # one step, so that of two threads one gives back
    if slot is not None:
        parts["taker"](slot)


def _ended(window: Any) -> None:
    give_back(window)
    for on_end, loan in window.__dict__.get("loans", ()):
        on_end(loan)


@lru_cache(maxsize=64)  # one type for each power of two
def window_type(nbytes: int) -> Any:
    """A ctypes array of `nbytes` that has attributes: `slot`, `taker`, and perhaps `loans`, pairs of an action and the
    number that it gets when no array can reach the memory any more."""
    return type("Window", (ctypes.c_ubyte * nbytes,), {"__del__": _ended})
