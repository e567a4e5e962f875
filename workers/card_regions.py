"""What an executor has opened of the memory that clients made on its card, and the copies from and to it.

The node lends a handle as it lends a resident (`workers/card_memory.py`); here it is opened, once, and closed when the
node takes it back. Inputs are copied from it to their room in the body, where a model finds them as any other, and
outputs from the reply's slot to it; a model that reads cards has the addresses instead (`workers/backends/on_card.py`),
and nothing is copied. What cannot be opened is told to whoever registers it, and to every request that names it. Read
`workers/station.py` for the device.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from fabric.card_place import place_in
from fabric.errors import InvalidArgument
from workers.backends.on_card import CardArray
from workers.card_memory import CONTENT
from workers.device import DeviceError
from workers.handover import Control

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.layout import Layout, TensorSpec
    from workers.held import Carried, HeldResidents
    from workers.plans import Step, Target
    from workers.station import Station


class CardRegions:  # mutable: opens and closes
    """The memory of others that this process has opened. `tell` goes to the node. Raises BrokenDevice where it turns
    out that the context is broken."""

    def __init__(self, station: Station, tell: Callable[[Control], None]) -> None:
        self._station = station
        self._tell = tell
        self._open: dict[int, tuple[int, int]] = {}  # address and bytes, by number
        self._refused: dict[int, str] = {}

    def give(self, number: int, fd: int) -> None:
        """The node lends a handle, by a descriptor that is ours from now on; it is told whether that can be opened."""
        try:
            handle, nbytes = CONTENT.unpack(os.pread(fd, CONTENT.size, 0))
        finally:
            os.close(fd)
        why = self._opened(number, handle, nbytes)
        if why:
            self._refused[number] = why
        self._tell(Control("opened", number, (why,) if why else ()))

    def _opened(self, number: int, handle: bytes, nbytes: int) -> str:
        device = self._station.device
        if device is None:
            return "this executor has no card"
        try:
            address, size = device.open_handle(handle)
            if size >= nbytes:
                self._open[number] = (address, nbytes)
                return ""
            device.close_handle(address)
        except DeviceError as error:
            self._station.look()  # a handle that is none breaks nothing; what did is told of here
            return str(error)
        return f"it has {size} bytes, and {nbytes} were registered"

    def forget(self, number: int) -> None:
        """The node takes a handle back; no request uses it any more."""
        self._refused.pop(number, None)
        address, _ = self._open.pop(number, (0, 0))
        if address and self._station.device is not None:
            try:
                self._station.device.close_handle(address)
            except DeviceError:
                self._station.look()  # its owner may be gone: that it cannot be closed harms nobody else

    def address(self, name: bytes, nbytes: int) -> int:
        """Where a place of so many bytes is. Raises InvalidArgument for what is not open."""
        place = place_in(name)
        assert place is not None, "asked only of places"
        start, size = self._open.get(place.region, (0, 0))
        if not start or place.offset + nbytes > size:
            why = self._refused.get(place.region, "it is not registered")
            raise InvalidArgument(f"memory on the card cannot be used: {why}; register it again")
        return start + place.offset

    def fetch_all(self, carried: tuple[Carried, ...], memory: memoryview, body_at: int) -> None:
        """Copies the inputs that lie on the card to their room in a body. Raises InvalidArgument."""
        for each in carried:
            if place_in(each.resident) is not None:
                self._fetch(
                    self.address(each.resident, each.nbytes), _address(memory, body_at + each.offset), each.nbytes
                )

    def _fetch(self, at: int, host: int, nbytes: int) -> None:
        device = self._station.device
        assert device is not None, "it has opened memory"
        try:
            device.fetch(at, host, nbytes)
        except DeviceError as error:
            raise self._station.judge(error) from error

    def store(self, memory: memoryview, offset: int, at: int, nbytes: int) -> None:
        """Copies an output to the card."""
        device = self._station.device
        assert device is not None, "it has opened memory"
        try:
            device.store(_address(memory, offset), at, nbytes)
        except DeviceError as error:
            raise self._station.judge(error) from error

    def arrays(self, steps: tuple[Step, ...]) -> dict[str, CardArray]:
        """The inputs that a model reads on the card. Raises InvalidArgument."""
        return {
            step.name: CardArray(self.address(step.resident, step.nbytes), step.shape, step.dtype) for step in steps
        }


class CardTargets:  # mutable: an output is written by the model or copied, once
    """Where the outputs of one request go. Raises InvalidArgument where that is not open."""

    reserves = True

    __slots__ = ("_places", "_regions")

    def __init__(self, regions: CardRegions, targets: tuple[Target, ...]) -> None:
        self._regions = regions
        self._places = {each.output: (regions.address(each.place, each.nbytes), each.nbytes) for each in targets}

    def take(self, spec: TensorSpec) -> CardArray | None:
        """Where a model writes an output itself; None where it is not wanted there, or does not fit."""
        at, room = self._places.get(spec.name, (0, 0))
        if not at or spec.nbytes > room:
            return None
        del self._places[spec.name]
        return CardArray(at, spec.shape, spec.dtype.numpy)

    def store(self, layout: Layout, memory: memoryview) -> None:
        """Copies the outputs that lie in a reply and are wanted on the card. What does not fit is left for whoever
        asked for it to see."""
        for spec, offset in zip(layout.specs, layout.offsets, strict=True):
            at, room = self._places.get(spec.name, (0, 0))
            if at and 0 < spec.nbytes <= room:
                self._regions.store(memory, offset, at, spec.nbytes)


def regions_of(held: HeldResidents) -> CardRegions:
    """The memory that an executor has opened. Raises InvalidArgument where it can open none."""
    if held.regions is None:
        raise InvalidArgument("memory on a card cannot be used here; send the tensors themselves")
    return held.regions


def _address(memory: memoryview, offset: int) -> int:
    return int(np.frombuffer(memory, np.uint8).ctypes.data) + offset
