"""Tells the C library to keep the memory that large gRPC messages are made of.

glibc gives each freed block of a few hundred KiB back to the kernel, and gRPC frees one for each message: what large
calls then pay for is 800 page faults per MiB, two to three times the work itself. The setting is the process's, so only
the port, a process of our own, uses it; a caller's process is not ours to change. Read `fabric/rpc_fallback/server.py`.
"""

from __future__ import annotations

import ctypes
import platform

# From malloc.h of glibc; their values are part of its ABI.
_M_TRIM_THRESHOLD = -1
_M_TOP_PAD = -2
_M_MMAP_THRESHOLD = -3

KEPT_BYTES = 256 << 20
"""What may stay with the process after a burst of large messages: the arena of one caller."""
_MMAP_THRESHOLD_BYTES = 32 << 20
"""glibc's own upper bound (HEAP_MAX_SIZE / 2 on 64 bits): larger blocks stay maps of their own."""


def keep_freed_memory() -> bool:
    """Makes the process keep freed memory. Returns whether the C library is one that can be told so."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    wanted = (
        (_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_TOP_PAD, 16 << 20),
    )
    refused = [option for option, value in wanted if mallopt(option, value) != 1]
    return not refused
