"""Reads the repository aside from the node's loop, which a slow disk must never hold up.

The answer comes back in the loop, whatever it is. This module decides nothing about it. Read `workers/library.py` next.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from fabric.errors import OverspillError

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.local.reactor import Reactor

_T = TypeVar("_T")


def read_aside(reactor: Reactor, read: Callable[[], _T], done: Callable[[_T | OverspillError], None]) -> None:
    """Calls `read` in a thread of its own, and `done` in the loop with what it gave or raised."""

    def run() -> None:
        try:
            found: _T | OverspillError = read()
        except OverspillError as error:
            found = error.with_traceback(None)
        reactor.call_soon_threadsafe(partial(done, found))

    threading.Thread(target=run, name="reading the repository", daemon=True).start()
