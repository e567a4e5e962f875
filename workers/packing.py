"""What one leg of an ensemble gives to the next, put into memory that goes by descriptor, and taken out of it.

Tensors on the card lie one after the other in one piece of shared memory of that card, all others in one sealed memfd.
Texts travel in their serialised form. This module decides nothing and sends nothing. Read `workers/legrun.py` next.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.dtypes import DType, bytes_decode, bytes_encode, dtype_of
from workers.backends.on_card import CardArray
from workers.legwords import NOWHERE, Contents, Part

if TYPE_CHECKING:
    from workers.card_rooms import CardRooms

    Array = np.ndarray[Any, Any] | CardArray

ALIGN_BYTES: Final = 512
"""As CUDA aligns what it allocates: kernels that read more than one element at once rely on it."""
SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


class Parcelled:  # mutable: filled in two steps
    """What a leg has packed: its memory on the card, mapped at `address`, and its descriptors, the card's first."""

    __slots__ = ("_parts", "address", "card_bytes", "descriptors", "host_bytes", "number", "on_card", "why_host")

    def __init__(self, number: int) -> None:
        self.number = number
        self.address = 0
        self.card_bytes = self.host_bytes = 0
        self.descriptors: list[int] = []
        self.on_card: dict[str, int] = {}
        """Where each tensor begins in that memory."""
        self.why_host = ""
        self._parts: dict[str, Part] = {}

    @property
    def contents(self) -> Contents:
        """What is said of it."""
        return Contents(self.number, tuple(self._parts.values()), self.card_bytes, self.host_bytes, self.why_host)

    def add(self, name: str, kind: DType, shape: tuple[int, ...], nbytes: int, on_host: int) -> None:
        """One tensor is packed."""
        self._parts[name] = Part(name, kind.name, shape, nbytes, self.on_card.get(name, NOWHERE), on_host)


def on_card(rooms: CardRooms, packed: Parcelled, tensors: dict[str, CardArray]) -> None:
    """Packs tensors on the card. It is done when the context was waited for. Raises MemoryError or RuntimeError, with
    nothing packed."""
    places, whole = _laid_out({name: each.nbytes for name, each in tensors.items()})
    shared = rooms.share(whole)
    try:
        for name, each in tensors.items():
            rooms.copy(shared.address + places[name], each.address, each.nbytes)
    except (RuntimeError, MemoryError):
        os.close(shared.fd)
        rooms.detach(shared.address, shared.nbytes)
        raise
    packed.address, packed.card_bytes, packed.on_card = shared.address, shared.nbytes, places
    packed.descriptors.append(shared.fd)
    for name, each in tensors.items():
        packed.add(name, _kind(each), each.shape, each.nbytes, NOWHERE)


def on_host(rooms: CardRooms | None, packed: Parcelled, tensors: dict[str, Array]) -> None:
    """Packs tensors into the host's memory. Raises OSError where there is none."""
    texts = {
        name: bytes_encode(each.reshape(-1).tolist())
        for name, each in tensors.items()
        if isinstance(each, np.ndarray) and each.dtype.kind == "O"
    }
    sizes = {name: len(texts[name]) if name in texts else each.nbytes for name, each in tensors.items()}
    places, whole = _laid_out(sizes)
    for name, each in tensors.items():
        packed.add(name, _kind(each), each.shape, sizes[name], places[name])
    if not whole:
        return
    fd = os.memfd_create("overspill-parcel", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    packed.descriptors.append(fd)
    os.ftruncate(fd, whole)
    with mmap.mmap(fd, whole) as memory:
        for name, each in tensors.items():
            at, upto = places[name], places[name] + sizes[name]
            if name in texts:
                memory[at:upto] = texts[name]
            elif sizes[name]:
                target = np.frombuffer(memory, np.uint8, sizes[name], at)
                _write(rooms, each, target)
                del target  # else the mapping could not be closed
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    packed.host_bytes = whole


def from_card(rooms: CardRooms, contents: Contents, fd: int, wanted: frozenset[str]) -> dict[str, CardArray]:
    """Copies of tensors that another card shares, on this one. Raises RuntimeError where they cannot be read,
    MemoryError where there is no room."""
    parts = [part for part in contents.parts if part.tensor in wanted and part.on_card != NOWHERE]
    if not parts:
        return {}
    found: dict[str, CardArray] = {}
    address = rooms.attach(fd, contents.card_bytes)
    try:
        for part in parts:
            own = rooms.room(("between two steps", part.tensor), DType[part.dtype].numpy, part.shape)
            if own.nbytes != part.nbytes:
                raise RuntimeError(f"{part.tensor!r} has {part.nbytes} bytes where its shape takes {own.nbytes}")
            rooms.copy(own.address, address + part.on_card, part.nbytes)
            found[part.tensor] = own
        rooms.settle()
    finally:
        rooms.detach(address, contents.card_bytes)
    return found


def from_host(contents: Contents, fd: int, wanted: frozenset[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Tensors over the host's memory, read-only. Raises OSError or ValueError for what is none."""
    if fd >= 0 and not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise ValueError("its memory may shrink")
    memory = memoryview(mmap.mmap(fd, contents.host_bytes, prot=mmap.PROT_READ) if fd >= 0 else b"")
    found: dict[str, np.ndarray[Any, Any]] = {}
    for part in contents.parts:
        if part.tensor not in wanted or part.on_host == NOWHERE:
            continue
        kind = DType[part.dtype]
        if kind is DType.BYTES:
            raw = bytes(memory[part.on_host : part.on_host + part.nbytes])
            array: np.ndarray[Any, Any] = bytes_decode(raw, prod(part.shape)).reshape(part.shape)
        elif part.nbytes:
            array = np.ndarray(part.shape, kind.numpy, memory, part.on_host)
        else:
            array = np.empty(part.shape, kind.numpy)
        array.flags.writeable = False
        found[part.tensor] = array
    return found


def _laid_out(sizes: dict[str, int]) -> tuple[dict[str, int], int]:
    """Where each begins, and what they take together."""
    places: dict[str, int] = {}
    at = 0
    for name, nbytes in sizes.items():
        places[name] = at
        at += -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
    return places, at


def _write(rooms: CardRooms | None, each: Array, target: np.ndarray[Any, Any]) -> None:
    if isinstance(each, CardArray):
        assert rooms is not None, "what lies on a card was given by an executor that has one"
        rooms.fetch(each, target)
    else:
        target[:] = np.ascontiguousarray(each).reshape(-1).view(np.uint8)


def _kind(each: Array) -> DType:
    return dtype_of(np.empty(0, each.dtype))
