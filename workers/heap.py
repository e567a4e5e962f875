"""What an executor has the C library do with memory that was freed, so that a model that goes leaves nothing behind.

glibc gives threads arenas of their own, and keeps at the top of each what was freed there, some ten MiB that even
`malloc_trim` does not give back. Models are loaded by threads, so of those that were unloaded a few such tops would
stay. With one arena for all there is one top, which is trimmed. Where the C library is another one, nothing is done.
Read `workers/shelf.py` next.
"""

from __future__ import annotations

import ctypes
from typing import Final

_M_ARENA_MAX: Final = -8  # malloc.h of glibc; a part of its ABI


def one_arena() -> None:
    """Has all threads that begin from now on share the heap. Executors run a model in one thread; numeric libraries'
    threads work on what that one allocated."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)


def give_back() -> None:
    """Gives freed memory back to the system. It takes some milliseconds."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
