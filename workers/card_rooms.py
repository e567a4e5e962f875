"""Room on an executor's card for what goes between the steps of ensembles: kept for the next request, made on demand.

What a model finds there is a `CardArray` (`workers/backends/on_card.py`). Everything is asked of the device here, and
told as the errors that a run may end with. It never decides what stays on the card: `workers/backends/ensemble.py`
does, and `workers/legrun.py` for what goes to another one. Read those next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from workers.backends.on_card import CardArray
from workers.device import CODE_OUT_OF_MEMORY, DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.layout import TensorSpec
    from workers.device import Device, Shared

Got = TypeVar("Got")
ROOM_BYTES_MIN: Final = 64 << 10
"""Smaller arrays take as much as this: memory of a card is given in larger pieces anyway."""


class CardRooms:  # mutable: keeps memory of the card
    """What one executor has on its card for ensembles. Every method may raise MemoryError, where the card has none
    left, and RuntimeError for what else it refuses; a context that is broken is found at the end of the run."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._rooms: dict[tuple[str, str], tuple[int, int]] = {}

    def room(self, key: tuple[str, str], dtype: np.dtype[Any], shape: tuple[int, ...]) -> CardArray:
        """An array to be written; whoever asks for the same key later writes over it."""
        nbytes = CardArray(0, shape, dtype).nbytes
        address, kept_bytes = self._rooms.get(key, (0, 0))
        if not kept_bytes or kept_bytes < nbytes:
            if self._rooms.pop(key, None) is not None:
                self._call(self._device.free, address)
            size = max(nbytes, ROOM_BYTES_MIN)
            address = self._call(self._device.allocate, size)
            self._rooms[key] = (address, size)
        return CardArray(address, shape, dtype)

    def fetched(self, array: CardArray) -> np.ndarray[Any, Any]:
        """The same in the host's memory, read-only."""
        target = np.empty(array.shape, array.dtype)
        self.fetch(array, target)
        target.flags.writeable = False
        return target

    def fetch(self, array: CardArray, target: np.ndarray[Any, Any]) -> None:
        """Copies an array into contiguous memory of the host's that is as long."""
        if array.nbytes:
            self._call(self._device.fetch, array.address, target.ctypes.data, array.nbytes)

    def share(self, nbytes: int) -> Shared:
        """See `Device.share`."""
        return self._call(self._device.share, nbytes)

    def attach(self, fd: int, nbytes: int) -> int:
        """See `Device.attach`."""
        return self._call(self._device.attach, fd, nbytes)

    def detach(self, address: int, nbytes: int) -> None:
        """See `Device.detach`."""
        self._call(self._device.detach, address, nbytes)

    def copy(self, target: int, source: int, nbytes: int) -> None:
        """See `Device.copy`."""
        self._call(self._device.copy, target, source, nbytes)

    def settle(self) -> None:
        """Waits for all work on the card: what others read there is whole then."""
        self._call(self._device.settle)

    def release(self) -> None:
        """Gives back what is kept."""
        while self._rooms:
            self._call(self._device.free, self._rooms.popitem()[1][0])

    def _call(self, function: Callable[..., Got], *given: int) -> Got:
        try:
            return function(*given)
        except DeviceError as error:
            if error.code == CODE_OUT_OF_MEMORY:
                raise MemoryError(str(error)) from None
            raise RuntimeError(str(error)) from None


class StepTargets:  # mutable: filled as a step asks
    """Where a step of an ensemble writes what stays on the card: the outputs named in `wanted`."""

    reserves = False

    __slots__ = ("_rooms", "_step", "_wanted", "taken")

    def __init__(self, rooms: CardRooms, step: str, wanted: frozenset[str]) -> None:
        self._rooms = rooms
        self._step = step
        self._wanted = wanted
        self.taken: dict[str, CardArray] = {}
        """Those that it writes there."""

    def take(self, spec: TensorSpec) -> CardArray | None:
        """See `Targets`. Where the card has no room, an output goes by the host's memory."""
        if spec.name not in self._wanted or not spec.nbytes:
            return None
        try:
            found = self.taken[spec.name] = self._rooms.room((self._step, spec.name), spec.dtype.numpy, spec.shape)
        except (MemoryError, RuntimeError):
            return None
        return found
