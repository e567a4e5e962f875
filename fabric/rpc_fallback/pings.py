"""Asks a node, through its port, for a sign of life: one call, from the background loop.

A port that has forgotten the session is greeted anew. This module never judges a silent one: the link does. Read
`fabric/rpc_fallback/watching.py` next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fabric.errors import Fate, NodeLost
from fabric.frame import Kind, bare_frame
from fabric.rpc_fallback.session import FAILURES, Session, left_s
from fabric.rpc_fallback.waiting import finished
from fabric.rpc_fallback.wire import read_pong

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.frame import Load


async def ping(session: Session, deadline: Deadline) -> Load:
    """The node's load. Raises OverspillError."""
    if session.lost:
        raise NodeLost(session.lost, Fate.NEVER_RAN)
    for last in (False, True):
        token = session.token
        try:
            message = token + bare_frame(Kind.PING)
            return read_pong(await finished(session.ping.future(message, timeout=left_s(deadline))))
        except FAILURES as failure:
            if not last and await asyncio.to_thread(session.renewed, failure, token, deadline):
                continue
            raise session.error(failure) from None
    raise AssertionError("the second pass returns or raises")
