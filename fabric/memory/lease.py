"""What a caller holds of an arena: a slot, a view of it, and the duty to give it back.

A lease is given back by `release`, by leaving its `with` block, or when the last numpy array made from it is gone:
every array that `tensors` makes keeps the lease's memory object alive as its base, and its end gives the slot back.
This module never lends: `fabric/memory/arena.py` does. Read `fabric/layout.py` and `fabric/frame.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from fabric.dtypes import DType, bytes_decode
from fabric.errors import InvalidArgument
from fabric.memory.window import give_back, window_type

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from fabric.layout import Layout, TensorSpec
    from fabric.memory.arena import Arena
    from fabric.memory.slots import Slot


class Lease:  # mutable: held, then released once
    """A slot on loan. `offset` and `nbytes` are its place in `arena`; `view` its writable bytes.

    Threads may share a lease; whoever writes to its memory after `release` writes to somebody else's request.
    """

    __slots__ = ("__weakref__", "arena", "slot", "window")

    def __init__(self, arena: Arena, slot: Slot, taker: Callable[[Slot], None] | None = None) -> None:
        """`taker` takes the slot of a part of the arena that its holder divides itself."""
        self.arena = arena
        self.slot = slot
        # numpy makes this ctypes object (not the lease, not a memoryview) the base of every array, so its end is the
        # moment when no array can reach the slot any more.
        window = self.window = window_type(slot.nbytes).from_buffer(arena.map, slot.offset)
        window.slot = slot
        window.taker = taker or arena.give_back

    @classmethod
    def of(cls, arena: Arena, nbytes: int) -> Lease:
        """Leases at least `nbytes` of the arena. Raises ArenaFull when none is free."""
        return cls(arena, arena.lease(nbytes))

    @property
    def offset(self) -> int:
        """Where the slot starts in its arena."""
        return self.slot.offset

    @property
    def nbytes(self) -> int:
        """The slot's size, a power of two."""
        return self.slot.nbytes

    @property
    def view(self) -> memoryview:
        """The slot's bytes, writable."""
        return memoryview(self.window).cast("B")

    def release(self) -> None:
        """Gives the slot back; the second call does nothing."""
        give_back(self.window)

    @property
    def released(self) -> bool:
        """Whether the slot was given back."""
        return "slot" not in self.window.__dict__

    def on_end(self, action: Callable[[int], object], loan: int) -> None:
        """Calls `action(loan)` when no array can reach the slot any more, in whatever thread that comes, inside the
        garbage collector perhaps: it takes no lock and never raises."""
        self.window.__dict__.setdefault("loans", []).append((action, loan))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<Lease {'released' if self.released else 'held'} of {self.slot!r}>"


def tensor_view(memory: memoryview, spec: TensorSpec, offset: int) -> np.ndarray[Any, Any]:
    """The tensor at `offset` of a body, uncopied; as writable as `memory`. BYTES gives its serialised uint8 form."""
    shape = (spec.nbytes,) if spec.dtype is DType.BYTES else spec.shape
    return np.ndarray(shape, spec.dtype.numpy, buffer=memory, offset=offset)


def tensors(memory: memoryview, layout: Layout) -> tuple[np.ndarray[Any, Any], ...]:
    """The tensors of a body as read-only arrays over `memory`; BYTES tensors are decoded from a private copy.

    Raises InvalidArgument when a BYTES tensor's lengths do not add up, or the body refers to one that is not in it.
    """
    if layout.residents:
        raise InvalidArgument("a body refers to resident tensors, which only a node has; send the tensors themselves")
    readonly = memory.toreadonly()
    return tuple(
        _decode_bytes(bytes(memory[offset : offset + spec.nbytes]), spec)
        if spec.dtype is DType.BYTES
        else np.ndarray(spec.shape, spec.dtype.numpy, buffer=readonly, offset=offset)
        for spec, offset in zip(layout.specs, layout.offsets, strict=True)
    )


def _decode_bytes(private: bytes, spec: TensorSpec) -> np.ndarray[Any, Any]:
    count = 1
    for dim in spec.shape:
        count *= dim
    array = bytes_decode(private, count).reshape(spec.shape)
    array.flags.writeable = False
    return array
