"""How a coroutine waits for gRPC's futures, and what becomes of answers that nobody waits for any more.

gRPC calls back from its own threads; the loop is woken from there. This module never sends. Read
`fabric/rpc_fallback/channel.py` next.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from fabric.memory.lease import Lease

if TYPE_CHECKING:
    from concurrent.futures import Future

    import grpc

    from fabric.transport import Answer


async def finished(rpc: grpc.Future) -> bytes:
    """Waits for a future of gRPC's on the running loop. Raises what the future raises."""
    loop = asyncio.get_running_loop()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, nobody waits
            loop.call_soon_threadsafe(wake)

    rpc.add_done_callback(done)
    try:
        await waiter
    except asyncio.CancelledError:
        rpc.cancel()  # which the port hears, and passes on
        raise
    answer: bytes = rpc.result()
    return answer


def ignore(_: object) -> None:
    """Nothing follows a CANCEL: the call's own outcome comes anyway."""


def discard(job: Future[Answer]) -> None:
    """Gives back the reply that nobody waits for any more."""
    if job.cancelled() or job.exception() is not None:
        return
    memory = job.result().memory
    if isinstance(memory, Lease):
        memory.release()
