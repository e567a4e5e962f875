"""Which parts of the tenants' arenas an executor has pinned, so that a GPU copies from and to their slots directly.

An arena is mostly address space; pinning all of it would take memory that no request uses. So the block around a slot
is pinned when the first large request uses it: aligned, a power of two, so that a slot lies in one block whole (a copy
must not cross two registrations). A larger slot replaces the blocks inside its own. Beyond the budget nothing more is
pinned; copies still work, and are slower. This module maps nothing. Read `workers/executor.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.device import Device

BLOCK_BYTES_MIN: Final = 4 << 20
WORTH_BYTES: Final = 128 << 10
"""Below this a copy takes 10 us whether its memory is pinned or not, and a slot of that size is soon another's."""


def block_of(offset: int, nbytes: int) -> tuple[int, int]:
    """(start, size) of the smallest aligned power of two of at least BLOCK_BYTES_MIN that holds a place."""
    size = BLOCK_BYTES_MIN
    while offset // size != (offset + max(1, nbytes) - 1) // size:
        size *= 2
    return offset - offset % size, size


class Pins:  # mutable: the blocks of all arenas
    """What one executor has pinned. Methods may raise DeviceError when the context is broken."""

    __slots__ = ("_arenas", "_blocks", "_budget_bytes", "_device", "pinned_bytes", "refused", "registered", "waiting")

    def __init__(self, device: Device, budget_bytes: int) -> None:
        self._device = device
        self._budget_bytes = budget_bytes
        self._arenas: dict[int, tuple[int, int]] = {}
        self._blocks: dict[int, dict[int, int]] = {}
        self.pinned_bytes = 0
        self.registered = 0
        """How often memory was registered: it grows with new slots, never with requests to known ones."""
        self.refused = 0
        """Places that were not pinned for want of budget."""
        self.waiting = False
        """Nothing more is pinned for now: the driver is taking another context down, and may keep whoever asks it for
        more than a launch or a copy waiting for as long."""

    def adopt(self, tenant_no: int, address: int, nbytes: int) -> None:
        """A tenant's arena is mapped."""
        self._arenas[tenant_no] = (address, nbytes)
        self._blocks[tenant_no] = {}

    def need(self, tenant_no: int, offset: int, nbytes: int) -> None:
        """A request reads or writes this place of an arena."""
        if nbytes < WORTH_BYTES:
            return
        address, whole = self._arenas[tenant_no]
        start, size = block_of(offset, nbytes)
        blocks = self._blocks[tenant_no]
        if self.waiting or any(at <= start and start + size <= at + length for at, length in blocks.items()):
            return
        size = min(size, whole - start)
        inside = [at for at in blocks if start <= at < start + size]
        if self.pinned_bytes + size - sum(blocks[at] for at in inside) > self._budget_bytes:
            self.refused += 1
            return
        for at in inside:
            self._drop(tenant_no, at)
        self._device.pin(address + start, size)
        blocks[start] = size
        self.registered += 1
        self.pinned_bytes += size

    def forget(self, tenant_no: int) -> None:
        """A tenant is gone: to be called before its arena is unmapped, and while no copy is under way."""
        for at in list(self._blocks[tenant_no]):
            self._drop(tenant_no, at)
        del self._blocks[tenant_no], self._arenas[tenant_no]

    def _drop(self, tenant_no: int, at: int) -> None:
        self._device.unpin(self._arenas[tenant_no][0] + at)
        self.pinned_bytes -= self._blocks[tenant_no].pop(at)
