"""Who is told that a channel is over, or that its peer may be: at most one, who may come late.

Every wire knows a death in its own way; this is what they do about it. It holds no channel, and whoever is told must
only take a note. This module never asks a peer for anything. Read `fabric/transport.py` next.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Watcher:  # mutable: nobody, somebody, over
    """The watcher of one channel."""

    __slots__ = ("_doubted", "_lock", "_over")

    def __init__(self) -> None:
        self._lock = Lock()
        self._doubted: Callable[[], None] | None = None
        self._over = False

    def watch(self, doubted: Callable[[], None]) -> None:
        """From now on `doubted()` is told; at once where all is over already."""
        with self._lock:
            self._doubted = doubted
            over = self._over
        if over:
            doubted()

    def doubt(self) -> None:
        """There is reason to ask the peer."""
        doubted = self._doubted
        if doubted is not None:
            doubted()

    def end(self) -> None:
        """The channel is over. Told once."""
        with self._lock:
            if self._over:
                return
            self._over = True
        self.doubt()
