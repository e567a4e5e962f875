"""Writes to shared memory of a client that two threads can do at the same time, and that no client can make fatal.

Writes to a file wait for each other: 16 MiB by `pwritev` took 1.8 ms, in two halves by two threads too. So large
regions are mapped, and the mapping is written by `process_vm_writev`, as if it were another process' memory: 0.9 ms by
two threads. Behind the end of a file that was cut, and where the system has no memory, it comes up short, while a store
by this process would be its end (SIGBUS); so nothing here ever reads or writes the mapping itself. Where the call is
forbidden (a seccomp filter), nothing is written. Read `frontdoor/copies.py` next.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

WINDOW_BYTES_MIN: Final = 1 << 20
"""Smaller outputs are written in one piece."""
WINDOWS_BYTES_MAX: Final = 64 << 30
"""Of all regions together. It costs no memory, but for 2 MiB of page tables for each GiB that was written to."""


class _Part(ctypes.Structure):
    """An iovec."""

    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


_LIBRARY: Final = ctypes.CDLL(None)
# By their types, since ctypes takes whatever it does not know for an int. It lets go of the interpreter's lock.
_MMAP: Final = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
)(("mmap", _LIBRARY))
_MUNMAP: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)(("munmap", _LIBRARY))
_PARTS: Final = (ctypes.POINTER(_Part), ctypes.c_ulong)
_WRITE: Final = ctypes.CFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int, *_PARTS, *_PARTS, ctypes.c_ulong)(
    ("process_vm_writev", _LIBRARY)
)
_FAILED: Final = ctypes.c_void_p(-1).value


class Window:  # mutable: open, then closed
    """The first bytes of a file, mapped where Python has no object to touch them by. Threads may share it."""

    __slots__ = ("_address", "_ended", "_nbytes")

    def __init__(self, address: int, nbytes: int, ended: Callable[[], None]) -> None:
        self._address = address
        self._nbytes = nbytes
        self._ended = ended

    def write(self, at: int, view: memoryview) -> int:
        """Writes `view` at byte `at`, and never makes the file longer. Returns how many bytes it has written: fewer
        than all where the memory ends, or the system refuses. Blocks for as long as the copy takes."""
        assert self._address, "it is closed after its last user"
        assert 0 <= at <= self._nbytes - len(view), "the place was checked"
        # numpy tells an address of memory that is read-only too, as a reply's is; ctypes does not.
        source = np.frombuffer(view, np.uint8)
        ours = _Part(source.__array_interface__["data"][0], len(view))
        theirs = _Part(self._address + at, len(view))
        done: int = _WRITE(os.getpid(), ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0)
        return max(0, done)

    def close(self) -> None:
        """Unmaps it. Safe to call twice."""
        address, self._address = self._address, 0
        if address:
            _MUNMAP(address, self._nbytes)
            self._ended()


class Windows:  # mutable: counts bytes
    """The windows of one front door, and how much they may map."""

    def __init__(self, nbytes_max: int = WINDOWS_BYTES_MAX) -> None:
        # Where addresses are rationed, no client may use them up.
        self._left = nbytes_max if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY else 0

    def open(self, fd: int, nbytes: int) -> Window | None:
        """Maps the first bytes of a file, which stays the caller's; None where they are few, or the system or the bound
        does not allow it."""
        if not WINDOW_BYTES_MIN < nbytes <= self._left:
            return None
        address = _MMAP(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if address in {None, _FAILED}:
            return None
        self._left -= nbytes

        def ended() -> None:
            self._left += nbytes

        return Window(address, nbytes, ended)
