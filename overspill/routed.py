"""One request of a gateway on its way through the router: its inputs, its one answer, and what is counted of it.

The router retries and picks; this is the front door's contract for it, and no more. Read `overspill/gateway.py` next.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from fabric.errors import Cancelled, OverspillError
from fabric.memory.lease import Lease
from frontdoor.failures import reason_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from fabric.deadline import Deadline
    from fabric.layout import TensorSpec
    from fabric.memory.arena import Arena
    from fabric.message import Body
    from frontdoor.ledger import Tally
    from frontdoor.traces import Trace
    from router.aio import AsyncRouter
    from router.reply import Reply


class RouterStaged:
    """The inputs of one request to a router."""

    __slots__ = ("_answered", "_body", "_model", "_router", "_tally")

    def __init__(
        self, router: AsyncRouter, model: str, body: Body, tally: Tally, answered: Callable[[str], None]
    ) -> None:
        self._answered = answered
        self._router = router
        self._model = model
        self._body = body
        self._tally = tally

    @property
    def views(self) -> tuple[memoryview, ...]:
        """Where each input is to be written."""
        memory, layout = self._body.memory, self._body.layout
        assert isinstance(memory, Lease), "a router stages what is to be written in a lease"
        places = zip(layout.specs, layout.offsets, strict=True)
        return tuple(memory.view[offset : offset + spec.nbytes] for spec, offset in places)

    @property
    def arena(self) -> Arena | None:
        """Where they lie."""
        return self._body.memory.arena if isinstance(self._body.memory, Lease) else None

    async def run(self, deadline: Deadline, priority: int, trace: Trace | None = None) -> RouterAnswered:
        """Sends the request, as often as the router's rules allow."""
        began_ns = time.monotonic_ns()
        self._tally.pending += 1
        try:
            remaining_s = deadline.remaining_s(time.monotonic())
            reply = await self._router.send(self._model, self._body, timeout_s=remaining_s, priority=priority)
        except (OverspillError, asyncio.CancelledError) as error:
            known = error if isinstance(error, OverspillError) else Cancelled("the client gave it up")
            self._tally.failed(time.monotonic_ns() - began_ns, reason_of(known))
            raise
        finally:
            self._tally.pending -= 1
        self._answered(self._model)
        way = reply.trace
        if trace is not None:  # by the clocks of another host, so these are no spans
            trace.tell(
                ("overspill.worker", way.worker), ("overspill.wire", way.wire), ("overspill.attempts", way.attempts),
                ("overspill.generation", way.generation), ("overspill.queue_ms", way.queue_ms),
                ("overspill.compute_ms", way.compute_ms), ("overspill.transport_ms", way.transport_ms),
            )  # fmt: skip
        queue_ns, compute_ns = int(way.queue_ms * 1e6), int(way.compute_ms * 1e6)
        self._tally.answered(time.monotonic_ns() - began_ns, queue_ns, compute_ns, int(time.time() * 1000))
        return RouterAnswered(reply)

    async def stream(
        self, deadline: Deadline, priority: int, trace: Trace | None = None
    ) -> AsyncGenerator[RouterAnswered, None]:
        """The one answer: streams of decoupled models are their nodes' own."""
        yield await self.run(deadline, priority, trace)

    def release(self) -> None:
        """Gives the memory back, once no node may read it any more."""
        if isinstance(self._body.memory, Lease):
            self._body.memory.release()


class RouterAnswered:
    """One reply of a router."""

    __slots__ = ("_reply",)

    def __init__(self, reply: Reply) -> None:
        self._reply = reply

    @property
    def outputs(self) -> tuple[tuple[TensorSpec, memoryview], ...]:
        """Outputs where they lie."""
        return self._reply.parts()

    @property
    def arena(self) -> Arena | None:
        """Where they lie, if they were not copied out."""
        return self._reply.arena

    def release(self) -> None:
        """Lets go of the outputs."""
        self._reply.close()
