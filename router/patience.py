"""Refuses a request at once where the queues before every worker are longer than its time, or than its priority allows.

A request that waits in vain costs its caller all of its time and its node a place in the queue; one that is refused at
once may be sent elsewhere, later, or not at all, and is told by how much it would have been late. This module never
picks. Read `router/dispatch.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING

from fabric.errors import DeadlineExceeded, Fate

if TYPE_CHECKING:
    from router.attempt import Attempts
    from router.learned import Kind
    from router.pick import Picked

LEVEL_DEFAULT, LEVEL_LAST = 128, 255
"""Where a request without a priority stands, and the last one; as on the node."""
PATIENCE_LAST = 0.25
"""A request of the last priority may spend this part of its time in a queue, one up to the default all of it: those in
between lie between. So the least urgent are refused first, while there is room for the others."""


def refuse_late(attempts: Attempts, found: Picked, kind: Kind, priority: int, now: float) -> None:
    """Ends a request that no worker is expected to answer in time, or that would wait longer than its priority allows.

    Only a queue is a reason: a request whose own run takes too long is let through, since what runs take is learned
    from them.
    """
    total_ms, _, queue_ms, unseen_ms, _ = found.terms
    left_ms = attempts.deadline.remaining_s(now) * 1000.0
    over = max(0, (priority or LEVEL_DEFAULT) - LEVEL_DEFAULT) / (LEVEL_LAST - LEVEL_DEFAULT)
    wait_max_ms = left_ms * (1.0 - (1.0 - PATIENCE_LAST) * over)
    wait_ms = queue_ms + unseen_ms
    late_ms = max(total_ms - left_ms, wait_ms - wait_max_ms)
    if late_ms <= 0.0 or wait_ms < late_ms or not found.worker.speed.known(kind):
        return
    why = f"the soonest worker, {found.worker.name}, is expected to answer {total_ms - left_ms:.0f} ms after its time"
    if total_ms <= left_ms:
        why = f"it would wait {wait_ms:.0f} ms, and its priority allows {wait_max_ms:.0f} ms"
    error = DeadlineExceeded(f"{why}; send it again in {late_ms:.0f} ms, or give it more time", Fate.NEVER_RAN)
    attempts.give_up(error, found.worker.name, now)
