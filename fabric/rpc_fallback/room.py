"""Asks the node, and waits where its memory for this caller has no room for the reply beside those of others.

What would find no room alone is refused at once, with its fate. This module never makes memory. Read
`fabric/rpc_fallback/peers.py` next.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.errors import ArenaFull

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.deadline import Deadline
    from fabric.transport import Answer, Call, Channel

LOOK_S = 0.02
"""Nobody tells of room in an arena, so whoever waits for some looks so often."""


def call_with_room(channel: Channel, call: Call, deadline: Deadline, make_room: Callable[[], bool]) -> Answer:
    """The node's answer. `make_room` lets go of what is only kept, and says whether there was anything. Raises what the
    node answers, and ArenaFull where there is no room in time, or never will be."""
    while True:
        try:
            return channel.call(call, deadline)
        except ArenaFull as error:
            full = error.with_traceback(None)
        if make_room():
            continue
        arena = channel.arena
        alone = arena is not None and full.needed_bytes <= arena.nbytes // 2
        if not alone or not channel.alive or deadline.remaining_s(time.monotonic()) <= LOOK_S:
            try:
                raise full
            finally:
                del full  # else error, traceback and this frame hold each other
        time.sleep(LOOK_S)
