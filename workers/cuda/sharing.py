"""Memory of a card that several processes map: made, given away as a descriptor, and mapped, by the driver's interface.

CUDA's virtual memory calls keep the memory as long as any handle, descriptor or mapping of it is left, so that nobody
reads freed memory when the process that made it is killed; what its older inter-process handles name ends with their
exporter. A process maps the memory of a card that it cannot see (`CUDA_VISIBLE_DEVICES`), for access by its own card.
This module never decides who gets what. Read `workers/card_rooms.py` next.
"""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING, Final

from workers.device import DeviceError, Shared

if TYPE_CHECKING:
    from workers.cuda.driver import Driver

# The numbers and structures of cuda.h, which are part of the driver's stable interface.
_PINNED: Final = 1
_ON_DEVICE: Final = 1
_DESCRIPTOR: Final = 1
_MINIMUM: Final = 0
_READ: Final = 1
_READ_WRITE: Final = 3
_FIRST: Final = 0
"""A process numbers the cards that it sees, and executors see one."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def share(driver: Driver, nbytes: int) -> Shared:
    """See `Device.share`."""
    properties = _Properties(_PINNED, _DESCRIPTOR, _Location(_ON_DEVICE, _FIRST))
    step, handle, fd = ctypes.c_size_t(), ctypes.c_uint64(), ctypes.c_int(-1)
    asked = (ctypes.byref(step), ctypes.byref(properties), ctypes.c_int(_MINIMUM))
    driver.call("asking for the size of pages", "cuMemGetAllocationGranularity", *asked)
    whole = -(-nbytes // step.value) * step.value
    flags = ctypes.c_uint64(0)
    driver.call(
        "making memory to share", "cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(whole),
        ctypes.byref(properties), flags,
    )  # fmt: skip
    try:
        driver.call(
            "making a descriptor of memory", "cuMemExportToShareableHandle", ctypes.byref(fd), handle,
            ctypes.c_int(_DESCRIPTOR), flags,
        )  # fmt: skip
        try:
            return Shared(_mapped(driver, handle, whole, (_READ_WRITE,)), whole, fd.value)
        except DeviceError:
            os.close(fd.value)
            raise
    finally:  # the mapping and the descriptor hold the memory from now on
        driver.call("letting a handle go", "cuMemRelease", handle)


def attach(driver: Driver, fd: int, nbytes: int) -> int:
    """See `Device.attach`."""
    handle = ctypes.c_uint64()
    driver.call(
        "taking shared memory", "cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd),
        ctypes.c_int(_DESCRIPTOR),
    )  # fmt: skip
    try:
        # Not every driver maps a card's memory for reading only.
        return _mapped(driver, handle, nbytes, (_READ, _READ_WRITE))
    finally:
        driver.call("letting a handle go", "cuMemRelease", handle)


def detach(driver: Driver, address: int, nbytes: int) -> None:
    """See `Device.detach`."""
    at, size = ctypes.c_uint64(address), ctypes.c_size_t(nbytes)
    driver.call("unmapping shared memory", "cuMemUnmap", at, size)
    driver.call("giving addresses back", "cuMemAddressFree", at, size)


def _mapped(driver: Driver, handle: ctypes.c_uint64, nbytes: int, flags: tuple[int, ...]) -> int:
    """The address that memory is mapped at for this process's card, with the first access that the driver grants."""
    at, size, none = ctypes.c_uint64(), ctypes.c_size_t(nbytes), ctypes.c_uint64(0)
    driver.call(
        "reserving addresses", "cuMemAddressReserve", ctypes.byref(at), size, ctypes.c_size_t(0), none, none
    )  # fmt: skip
    try:
        driver.call("mapping shared memory", "cuMemMap", at, size, ctypes.c_size_t(0), handle, none)
    except DeviceError:
        driver.call("giving addresses back", "cuMemAddressFree", at, size)
        raise
    for number, wanted in enumerate(flags):
        access = _Access(_Location(_ON_DEVICE, _FIRST), wanted)
        try:
            driver.call(
                "opening shared memory", "cuMemSetAccess", at, size, ctypes.byref(access), ctypes.c_size_t(1)
            )  # fmt: skip
        except DeviceError:
            if number == len(flags) - 1:
                detach(driver, at.value, nbytes)
                raise
        else:
            break
    return at.value
