"""When a connection asks the peer's NIC for a sign of life, and when its silence is the end.

A peer that dies sends nothing, and a queue pair with nothing on its way finds out nothing: whoever waits for a reply
would wait until its deadline. So a connection that has heard nothing for a while writes no bytes to the peer, which the
peer's NIC acknowledges as long as the queue pair is there. Whether the process behind it still works is the link's
affair (its pings are answered by the peer's own code). This module never posts. Read `fabric/rdma/asides.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fabric.rdma.config import RdmaConfig

PULSE_S = 0.1
"""While replies are awaited: with the NIC's own half a second, a peer that died is known 0.7 s later."""
IDLE_PULSE_S = 5.0
"""While nothing is: what it costs to keep a dead peer's memory so long is nothing, and 300 idle peers ask 60 times a
second."""
_EARLY_S = PULSE_S / 10
"""How much earlier than the look that found it something is taken to have come: the next look may be early itself."""
QUICK_S_MIN = 0.05
"""For one acknowledgement after the peer's line broke: a Python thread that shares its CPU is late by some of that."""


class Pulse:  # mutable: times
    """The pulse of one connection. All times are of one monotonic clock."""

    __slots__ = ("_end_s", "_heard_s", "_silent_s", "quick_s", "spoke")

    def __init__(self, config: RdmaConfig, now: float) -> None:
        self.spoke = False
        """Whether something came since it was last looked: to ask for the time with each message would cost more."""
        self._heard_s = now
        self._end_s: float | None = None
        self._silent_s = 2.0 * config.silence_s
        self.quick_s = max(config.ack_s, QUICK_S_MIN)
        """What one acknowledgement may take when there is reason to doubt the peer."""

    def heard(self) -> None:
        """Something came."""
        self.spoke = True

    def due(self, now: float, *, awaited: bool) -> bool:
        """Whether the peer's NIC is to be asked now; `awaited` says that replies are out. Asked every `PULSE_S`."""
        if self.spoke:
            self.spoke = False
            self._heard_s = now - _EARLY_S
        return self._end_s is None and now - self._heard_s >= (PULSE_S if awaited else IDLE_PULSE_S)

    @property
    def asked_already(self) -> bool:
        """Whether an acknowledgement is awaited."""
        return self._end_s is not None

    def asked(self, now: float) -> None:
        """The NIC was asked: it reports an error by itself when its retries are over, and this limit is for one that
        does not."""
        self._end_s = now + self._silent_s

    def hurry(self, now: float) -> None:
        """There is reason to doubt the peer: the answer that is awaited must come at once."""
        assert self._end_s is not None, "asked before"
        self._end_s = min(self._end_s, now + self.quick_s)

    def answered(self, now: float) -> None:
        """The peer's NIC has acknowledged."""
        self._end_s = None
        self._heard_s = now

    def overdue(self, now: float) -> bool:
        """Whether the answer has not come in time."""
        return self._end_s is not None and now >= self._end_s
