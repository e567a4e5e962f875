"""When a draining node may go: its work is done, and its callers have turned to others.

A request that is on its way when the last socket closes has an unknown fate, so nobody may send it again. A draining
node therefore stays to refuse (a refused request never ran, and goes elsewhere) until its callers have read in the
registry that it drains, and are quiet. This module never waits and never closes anything. Read `workers/node.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

QUIET_S = 0.3
"""So long nobody may have asked: a change in a registry reached all watchers within 14 ms (measured with Consul, idle),
and a folder's watchers look ten times a second."""
STAY_MAX_S = 2.0
"""Callers with a fixed list of addresses never learn of it, and would keep the node for ever."""


class Leaving:  # mutable: remembers when somebody asked last
    """The last seconds of one node: it began to drain at `began_s`, and may take `drain_s`. Times are in seconds."""

    def __init__(self, began_s: float, drain_s: float, refused: int) -> None:
        self._stays_until_s = began_s + min(STAY_MAX_S, drain_s)
        self._late_s = began_s + drain_s
        self._refused = refused
        self._asked_s = began_s

    def may_go(self, now_s: float, *, idle: bool, callers: bool, refused: int) -> bool:
        """Whether nothing holds the node any more. `refused` counts the requests that it refused since it drains."""
        if refused != self._refused:
            self._refused, self._asked_s = refused, now_s
        quiet = now_s >= self._asked_s + QUIET_S or now_s >= self._stays_until_s
        return idle and (quiet or not callers)

    def is_late(self, now_s: float) -> bool:
        """Whether its time is over, done or not."""
        return now_s >= self._late_s
