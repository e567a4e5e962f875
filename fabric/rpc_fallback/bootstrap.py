"""Carries an offer of the rdma wire to a node's port, and its answer back: one call, with this wire's token and TLS.

It needs no session and no memory at the port, so asking costs little where the answer is a refusal. The call stays open
as long as the queue pairs that came of it: its end tells of a peer's death, which RDMA does not. What the bytes mean is
the rdma wire's affair. Read `fabric/rpc_fallback/lines.py` for the other end.
"""

from __future__ import annotations

import time
from threading import Timer
from typing import TYPE_CHECKING

from fabric.dialling import GIVEN_UP, Dialling
from fabric.errors import Cancelled, Fate, NodeLost, OverspillError
from fabric.rpc_fallback.held_call import HeldCall
from fabric.rpc_fallback.session import FAILURES, Session, too_late
from fabric.rpc_fallback.wire import CLIENT

if TYPE_CHECKING:
    from fabric.deadline import Deadline
    from fabric.rpc_fallback.config import RpcConfig


def bring_offer(
    address: str, client_id: int, config: RpcConfig, offer: bytes, deadline: Deadline, dialling: Dialling | None = None
) -> tuple[bytes, HeldCall]:
    """The answer of the port at `address` (HOST:PORT), which may be an ERROR frame, and the line. Blocks; `dialling`
    may end the wait.

    Raises NodeLost when nobody answers, DeadlineExceeded, AccessDenied for a wrong certificate, ConfigError for a wrong
    address or file.
    """
    session = Session(address, client_id, config, None, ())
    try:
        left_s = deadline.remaining_s(time.monotonic())
        if not left_s:
            raise too_late(Fate.NEVER_RAN)
        call = session.offer(CLIENT.pack(client_id) + offer)
        timer = Timer(left_s, call.cancel)  # the call itself has no deadline: it stays
        timer.start()
        try:
            with (dialling or Dialling()).waiting(lambda: session.lose(GIVEN_UP)):
                answer = next(call)
            return answer, HeldCall(call, "its rdma port is gone", lambda: session.lose("the line was closed"))
        except FAILURES as failure:
            error = session.error(failure)
            raise too_late(Fate.NEVER_RAN) if isinstance(error, Cancelled) else error from None
        except StopIteration:
            raise NodeLost("the node's port hung up on an offer of rdma; stay on rpc") from None
        finally:
            timer.cancel()
            timer.join()
    except OverspillError as error:
        session.lose("the offer was not answered")
        error.fate = Fate.NEVER_RAN
        raise
    except BaseException:  # whatever it was, nothing may stay open behind it
        session.lose("the offer was not answered")
        raise
