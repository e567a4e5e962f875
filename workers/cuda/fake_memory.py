"""Memory of a fake card: a process's own, a sealed memfd behind a handle as long as CUDA's, and a memfd that is given.

A handle names the process that made it, its descriptor and its card, so that it can be opened as long as that process
lives, on that card alone, and one that is cut or foreign cannot: with the numbers that a driver answers then. Addresses
are where it is mapped. It never leaves anything behind. Read `workers/cuda/fake.py` for whose memory it is.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Final

from workers.device import CODE_INVALID, HANDLE_BYTES, DeviceError, Shared

_MAGIC: Final = b"FAKE-IPC"
_HANDLE: Final = struct.Struct("<8sIIQ36xI")  # magic, card, process, descriptor, and the sum of the bytes before
assert _HANDLE.size == HANDLE_BYTES
_NO_CONTEXT: Final = 201
"""CUDA_ERROR_INVALID_CONTEXT: what opening the memory of a process that is gone is answered with."""
_ILLEGAL: Final = 700
_STEP_BYTES: Final = 2 << 20
"""The pages that real cards share are of this size."""
_OPENING: Final = "opening another process's memory"


@dataclass(frozen=True, slots=True)
class FakeExport:
    """Memory that a process made on a fake card. `memory` is its own view of it."""

    handle: bytes
    memory: mmap.mmap
    fd: int

    @classmethod
    def of(cls, card: int, nbytes: int) -> FakeExport:
        """Makes it, empty."""
        fd = os.memfd_create("overspill-fake-card", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
        words = _HANDLE.pack(_MAGIC, card, os.getpid(), fd, 0)
        return cls(words[:-4] + struct.pack("<I", sum(words)), mmap.mmap(fd, nbytes), fd)

    def close(self) -> None:
        """Frees it; whoever has opened it keeps the bytes."""
        self.memory.close()
        os.close(self.fd)


class FakeMemory:  # mutable: maps what it and others made
    """What one context on fake card `number` has mapped."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._opened: dict[int, mmap.mmap] = {}

    def open(self, handle: bytes) -> tuple[int, int]:
        """See `Device.open_handle`."""
        if len(handle) != HANDLE_BYTES:
            raise DeviceError(CODE_INVALID, f"a handle of {len(handle)} bytes", _OPENING)
        magic, card, pid, fd, check = _HANDLE.unpack(handle)
        if magic != _MAGIC or check != sum(handle[:-4]) or card != self._number:
            raise DeviceError(CODE_INVALID, "invalid value", _OPENING)
        try:
            ours = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            raise DeviceError(_NO_CONTEXT, "invalid context", _OPENING) from None
        try:
            if not fcntl.fcntl(ours, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise DeviceError(CODE_INVALID, "invalid value", _OPENING)
            mapped = mmap.mmap(ours, os.fstat(ours).st_size)
        except OSError:  # it is no memfd
            raise DeviceError(CODE_INVALID, "invalid value", _OPENING) from None
        finally:
            os.close(ours)
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._opened[address] = mapped
        return address, len(mapped)

    def close(self, address: int) -> None:
        """See `Device.close_handle`."""
        mapped = self._opened.pop(address, None)
        if mapped is None:
            raise DeviceError(CODE_INVALID, "invalid value", "closing another process's memory")
        mapped.close()

    def allocate(self, nbytes: int) -> int:
        """See `Device`."""
        return self._map(mmap.mmap(-1, nbytes))

    def share(self, nbytes: int) -> Shared:
        """See `Device`."""
        whole = -(-nbytes // _STEP_BYTES) * _STEP_BYTES
        fd = os.memfd_create("overspill-fake-shared", os.MFD_CLOEXEC)
        os.ftruncate(fd, whole)
        return Shared(self._map(mmap.mmap(fd, whole)), whole, fd)

    def attach(self, fd: int, nbytes: int) -> int:
        """See `Device`."""
        try:
            return self._map(mmap.mmap(fd, nbytes))
        except (OSError, ValueError):
            raise DeviceError(CODE_INVALID, "invalid value", "taking shared memory") from None

    def let_go(self, address: int, doing: str) -> None:
        """Frees or unmaps what lies there."""
        mapped = self._opened.pop(address, None)
        if mapped is None:
            raise DeviceError(CODE_INVALID, "invalid value", doing)
        mapped.close()

    def _map(self, mapped: mmap.mmap) -> int:
        address = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        self._opened[address] = mapped
        return address

    def check(self, at: int, nbytes: int, doing: str) -> None:
        """Raises DeviceError for a place that is not in what is open."""
        if not any(start <= at and at + nbytes <= start + len(mapped) for start, mapped in self._opened.items()):
            raise DeviceError(_ILLEGAL, "illegal address", doing)
