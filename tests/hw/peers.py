"""What a copy from card to card takes, straight and by way of the host's memory: whether peer copies would pay.

    python -m tests.hw.peers

One process over the first two cards that it may see; it prints one JSON object. What goes straight in a node, and what
by way of the host, stands in `docs/decisions/0014`, which hangs on these figures.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from workers.cuda.driver import Driver
from workers.device import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
TRIES = 7
_PORTABLE = 1


class Pair:
    """Two cards with a block of memory on each, and one of the host's. Raises DeviceError, MissingDependency."""

    def __init__(self, nbytes: int) -> None:
        self._driver = Driver()
        self._call("starting CUDA", "cuInit", ctypes.c_uint(0))
        self._contexts: list[ctypes.c_void_p] = []
        self._blocks: list[ctypes.c_uint64] = []
        self._devices = []
        for number in range(2):
            device, context, block = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
            self._call("choosing a card", "cuDeviceGet", ctypes.byref(device), ctypes.c_int(number))
            self._call("making a context", "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._call("making a context", "cuCtxSetCurrent", context)
            self._call("allocating", "cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(nbytes))
            self._devices.append(device)
            self._contexts.append(context)
            self._blocks.append(block)
        self._host = ctypes.c_void_p()
        size, flags = ctypes.c_size_t(nbytes), ctypes.c_uint(_PORTABLE)
        self._call("allocating on the host", "cuMemHostAlloc", ctypes.byref(self._host), size, flags)

    def can_reach(self) -> bool:
        """Whether the one card reads the other's memory; lets it, if so."""
        can = ctypes.c_int()
        self._call("asking for peers", "cuDeviceCanAccessPeer", ctypes.byref(can), *self._devices)
        for at in (0, 1) if can.value else ():
            self._call("choosing a card", "cuCtxSetCurrent", self._contexts[at])
            self._call("letting peers in", "cuCtxEnablePeerAccess", self._contexts[1 - at], ctypes.c_uint(0))
        return bool(can.value)

    def straight(self, nbytes: int) -> None:
        """One copy from card to card."""
        (source, target), (here, there), size = self._blocks, self._contexts, ctypes.c_size_t(nbytes)
        self._call("copying", "cuMemcpyPeer", target, there, source, here, size)
        self._settle()

    def by_host(self, nbytes: int) -> None:
        """The same in two steps, over memory that both cards read where it lies."""
        size = ctypes.c_size_t(nbytes)
        self._call("choosing a card", "cuCtxSetCurrent", self._contexts[0])
        self._call("copying", "cuMemcpyDtoH_v2", self._host, self._blocks[0], size)
        self.second_half(nbytes)

    def second_half(self, nbytes: int) -> None:
        """From the host to the second card: what a resident costs that the host has already."""
        self._call("choosing a card", "cuCtxSetCurrent", self._contexts[1])
        self._call("copying", "cuMemcpyHtoD_v2", self._blocks[1], self._host, ctypes.c_size_t(nbytes))
        self._settle()

    def _settle(self) -> None:
        for context in self._contexts:
            self._call("choosing a card", "cuCtxSetCurrent", context)
            self._call("waiting", "cuCtxSynchronize")

    def _call(self, doing: str, function: str, *arguments: Any) -> None:
        self._driver.call(doing, function, *arguments)


def measure() -> dict[str, Any]:
    """Microseconds, the least of some tries, by bytes."""
    pair = Pair(max(SIZES))
    figures: dict[str, Any] = {"can_reach": pair.can_reach()}
    ways: dict[str, Callable[[int], None]] = {
        "straight": pair.straight, "by_host": pair.by_host, "from_host": pair.second_half,
    }  # fmt: skip
    for name, copy in ways.items():
        for nbytes in SIZES:
            taken: list[float] = []
            for _ in range(TRIES):
                began = time.perf_counter()
                copy(nbytes)
                taken.append(1e6 * (time.perf_counter() - began))
            figures[f"{name}_{nbytes >> 10}_kib_us"] = round(min(taken), 1)
    return figures


def main() -> None:
    """Prints the figures."""
    try:
        sys.stdout.write(json.dumps(measure()) + "\n")
    except DeviceError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    main()
