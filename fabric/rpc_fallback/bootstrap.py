"""Carries an offer of the rdma wire to a node's port, and its answer back: one call, with this wire's token and TLS.

It needs no session and no memory at the port, so asking costs little where the answer is a refusal. What the bytes mean
is the rdma wire's affair. Read `fabric/rpc_fallback/service.py` for the other end.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from fabric.errors import Fate
from fabric.rpc_fallback.session import FAILURES, Session, too_late
from fabric.rpc_fallback.wire import CLIENT

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.rpc_fallback.config import RpcConfig


def bring_offer(address: str, client_id: int, config: RpcConfig, offer: bytes, deadline: Deadline) -> bytes:
    """The answer of the port at `address` (HOST:PORT), which may be an ERROR frame. Blocks.

    Raises NodeLost when nobody answers, AccessDenied for a wrong certificate, ConfigError for a wrong address or file.
    """
    session = Session(address, client_id, config, None, ())
    try:
        left_s = deadline.remaining_s(time.monotonic())
        if not left_s:
            raise too_late(Fate.NEVER_RAN)
        try:
            return session.offer(CLIENT.pack(client_id) + offer, left_s)
        except FAILURES as failure:
            error = session.error(failure)
            error.fate = Fate.NEVER_RAN
            raise error from None
    finally:
        session.lose("the offer was answered")
