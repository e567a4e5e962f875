"""Ends a process whose loop no longer turns: nobody is answered by it any more, health least of all.

Work that takes long belongs into threads, so a loop that stands for `LIMIT_S` stands because of a bug. Whoever started
the process (the node, or a service manager) starts it again, which serves clients better than waiting. A node may end
its front door sooner, so where the loop stands is printed before that. A process that was stopped as a whole is not
counted: its watchdog stood too. This module never looks at requests. Read `frontdoor/port.py` next.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TICK_S = 1.0
LIMIT_S = 30.0
"""A hundred times what the longest known turn takes (reading 8 MiB of JSON)."""
TELL_S = 4.0
"""Before a node has missed six answers, a second each (`workers/port_settings.py`)."""
EXIT_CODE = 70
"""EX_SOFTWARE of sysexits.h."""


def _tell() -> None:
    sys.stderr.write(f"the loop of this process stands since {TELL_S:.0f} s, here:\n")
    faulthandler.dump_traceback()


def _end() -> None:
    sys.stderr.write(f"the loop of this process stands since {LIMIT_S:.0f} s; it ends, to be started again\n")
    faulthandler.dump_traceback()
    os._exit(EXIT_CODE)


class Watchdog:  # mutable: counts
    """Watches `loop` for as long as its block lasts."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limit_s: float = LIMIT_S, end: Callable[[], None] = _end,
        tick_s: float = TICK_S, tell: Callable[[], None] = _tell, tell_s: float = TELL_S,
    ) -> None:  # fmt: skip
        self._loop = loop
        self._limit_s = limit_s
        self._end = end
        self._tick_s = tick_s
        self._tell, self._tell_s = tell, tell_s
        self._turned = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="overspill-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._over.set()
        self._thread.join()

    def _turn(self) -> None:
        self._turned = True

    def _watch(self) -> None:
        missed_s, told = 0.0, False
        while not self._over.wait(self._tick_s):
            if self._turned:
                missed_s, told, self._turned = 0.0, False, False
                self._loop.call_soon_threadsafe(self._turn)
                continue
            missed_s += self._tick_s
            if missed_s >= self._tell_s and not told:
                told = True
                self._tell()
            if missed_s >= self._limit_s:
                self._end()
                return
