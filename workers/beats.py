"""Whether a child process still turns: it is asked once a beat, and whoever misses many in a row stands still.

Beats are counted, not seconds: where the whole machine or the node itself stood (a suspended guest, a stopped process
group), one beat is missed and not many. This module asks nobody. Read `workers/port_keeper.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from enum import Enum


class Beat(Enum):
    """What to do at a beat."""

    ASK = "ask"
    WAIT = "wait"
    REPLACE = "replace"


class Beats:  # mutable: counts
    """The beats of one life of a process, of which `missed_max` may be missed in a row."""

    def __init__(self, missed_max: int) -> None:
        self._missed_max = missed_max
        self._asked = False
        self._missed = 0

    def heard(self) -> None:
        """It answered."""
        self._asked, self._missed = False, 0

    def beat(self) -> Beat:
        """What is to be done now."""
        if not self._asked:
            self._asked = True
            return Beat.ASK
        self._missed += 1
        return Beat.WAIT if self._missed < self._missed_max else Beat.REPLACE
