"""Waits for peers that may never answer, and the one word that ends them all when nobody wants their wire any more.

A wire is opened in a helper thread that blocks until its deadline. A router that is closed meanwhile, or a program that
is to end, must not wait for that. This module opens nothing. Read `fabric/transport.py` next.
"""

from __future__ import annotations

from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GIVEN_UP = "it was given up while it was opened"


class Dialling:  # mutable: waits come and go, until it is over
    """The waits of one link. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ends: dict[object, Callable[[], None]] = {}
        self._over = False

    @contextmanager
    def waiting(self, end: Callable[[], None]) -> Iterator[None]:
        """A wait that `end` ends, from another thread; at once where it is over already."""
        key = object()
        with self._lock:
            over = self._over
            if not over:
                self._ends[key] = end
        if over:
            end()
        try:
            yield
        finally:
            with self._lock:
                self._ends.pop(key, None)

    def give_up(self) -> None:
        """Ends every wait, and those to come. Safe twice."""
        with self._lock:
            self._over = True
            ends = list(self._ends.values())
        for end in ends:
            end()
