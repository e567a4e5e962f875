"""Memory that a copier may map: the file of a client's region, or the arena that the engine's memory lies in.

It is known by a number, and whoever has mapped it hears of its end. This module maps nothing. Read
`frontdoor/copiers.py` next.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import asyncio
    import mmap
    from collections.abc import Callable

    from fabric.memory.arena import Arena


class Mappable:  # mutable: numbered, perhaps spoiled, then closed
    """`nbytes` of the file `fd`, which is its owner's and open until `close`; `begin` is a page's."""

    __slots__ = ("begin", "fd", "nbytes", "number", "on_close", "spoiled")

    def __init__(self, fd: int, nbytes: int, begin: int = 0) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.begin = begin
        self.number = 0
        """Given by the copiers, when it is first used."""
        self.spoiled = False
        """It was the end of a copier, or could not be mapped: it is left to the kernel from now on."""
        self.on_close: Callable[[Mappable], None] | None = None

    def close(self) -> None:
        """It is used no more. Safe to call twice."""
        heard, self.on_close = self.on_close, None
        if heard is not None:
            heard(self)


@dataclass(frozen=True, slots=True)
class _Known:
    """An arena in use: its mapping in this process, and where that begins."""

    mapping: weakref.ref[mmap.mmap]
    memory: Mappable
    address: int


class Arenas:  # mutable: those in use
    """The arenas that copies went to or came from, each until its mapping in this process is gone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known: dict[int, _Known] = {}

    def place(self, arena: Arena, view: memoryview) -> tuple[Mappable, int] | None:
        """The memory that a view lies in, and where; None where that is not this arena, or it ends just now."""
        known = self._known.get(id(arena.map))
        if known is None or known.mapping() is not arena.map:
            known = self._learn(arena)
            if known is None:
                return None
        at = _address(view) - known.address
        return (known.memory, at) if 0 <= at <= arena.nbytes - len(view) else None

    def close(self) -> None:
        """Lets go of all."""
        for key in tuple(self._known):
            self._drop(key, self._known[key].memory)

    def _learn(self, arena: Arena) -> _Known | None:
        with arena.lock:  # who closes it holds it too, and the number may be another file's afterwards
            if arena.fd < 0:
                return None
            try:
                fd = os.dup(arena.fd)
            except OSError:  # no descriptor left
                return None
        key, memory = id(arena.map), Mappable(fd, arena.nbytes)

        def ended(_mapping: weakref.ref[mmap.mmap]) -> None:
            # In whatever thread lets go of the last view, perhaps inside the garbage collector.
            with suppress(RuntimeError):  # the loop is closed, and so is all this
                self._loop.call_soon_threadsafe(self._drop, key, memory)

        known = _Known(weakref.ref(arena.map, ended), memory, _address(arena.view[:1]))
        self._known[key] = known
        return known

    def _drop(self, key: int, memory: Mappable) -> None:
        known = self._known.get(key)
        if known is not None and known.memory is memory:  # else another one has come to its address
            del self._known[key]
        memory.close()
        fd, memory.fd = memory.fd, -1
        if fd >= 0:
            os.close(fd)


def _address(view: memoryview) -> int:
    # numpy tells it of memory that is read-only too, as a reply's is; ctypes does not.
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address
