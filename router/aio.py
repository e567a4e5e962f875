"""The asyncio router: the caller's loop drives its requests, over the local wire by a socket of its own, and over the
other wires by the background thread's loop.

Inputs are checked and copied in the caller's thread, so that they may be changed as soon as `infer` was called. Giving
up an `await` cancels the request: at the node if it is still queued there, and in every count here. It can be used from
several loops at once. This module decides nothing: it carries out what `router/core.py` yields. Read that next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from fabric.errors import OverspillError
from fabric.layout import layout_of
from fabric.message import Body
from router.client import CONNECT_TIMEOUT_S, lease_inputs
from router.dispatch import Attempt
from router.hints import check_hint
from router.inputs import check
from router.mapping import map_batch_async
from router.opening import Opened, open_router
from router.prepared import AsyncPrepared
from router.race import race
from router.resident import Resident
from router.staging import release
from router.steps import Read

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Mapping
    from concurrent.futures import Future
    from types import TracebackType

    from fabric.layout import TensorSpec
    from fabric.transport import Answer
    from router.config import RouterConfig
    from router.core import Core, Life
    from router.mapping import Mapped
    from router.record import Decision
    from router.reply import Reply
    from router.staging import Staged
    from router.statistics import RouterStatistics
    from router.steps import Wait

    Submit = Callable[[Coroutine[Any, Any, Answer]], Future[Answer]]


class AsyncRouter:
    """Sends requests to the worker that will answer them first. Made by `AsyncRouter.connect`, which is awaited or
    entered: `async with AsyncRouter.connect(url) as router`."""

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._core = opened.core
        opened.close_with(self)

    @classmethod
    def connect(
        cls, registry_url: str, *, config: RouterConfig | None = None, timeout_s: float = CONNECT_TIMEOUT_S
    ) -> Connecting:
        """Reads the registry and opens links, as `Router.connect` does; nothing begins before it is awaited."""
        return Connecting(registry_url, config, timeout_s)

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        timeout_s: float,
        priority: int = 0,
        cost: float | None = None,
    ) -> Reply:
        """Sends `inputs` and returns the reply; takes and raises what `Router.infer` does. Cancelling it cancels the
        request."""
        core = self._core
        hint = check_hint(cost)
        offer, deadline = core.admit(model, timeout_s, priority)
        body = core.staging.stage(offer.facts, inputs)
        return await self._run(core.life(model, body, deadline, priority, offer.idempotent, hint), body)

    def prepare(self, model: str, rows: int | None = None, **dims: tuple[int, ...] | Resident) -> AsyncPrepared:
        """Leases the inputs that the model declares, as `Router.prepare` does."""
        return AsyncPrepared(lease_inputs(self._core, model, rows, dims), self._send)

    def stage(self, model: str, specs: tuple[TensorSpec, ...]) -> Body:
        """Memory for inputs that the caller has as bytes, laid out as `specs` say (BYTES in their serialised form): to
        be written, sent by `send`, and its lease released. Raises what `infer` raises before it sends."""
        core = self._core
        core.check_usable()
        facts = core.offer(model).facts
        if facts is not None:
            check(facts, specs)
        layout = layout_of(specs)
        return Body(layout, core.staging.lease(layout.body_bytes))

    async def send(self, model: str, body: Body, *, timeout_s: float, priority: int = 0) -> Reply:
        """Sends what was staged, uncopied; takes and raises what `infer` does."""
        return await self._send(model, body, timeout_s, priority)

    async def _send(self, model: str, body: Staged, timeout_s: float, priority: int) -> Reply:
        core = self._core
        offer, deadline = core.admit(model, timeout_s, priority)
        return await self._run(core.life(model, body, deadline, priority, offer.idempotent))

    async def _run(self, life: Life, staged: Staged | None = None) -> Reply:
        return await _drive(self._core, life, staged, self._opened.background.submit)

    async def map(
        self,
        model: str,
        batch: Mapping[str, object],
        *,
        timeout_s: float,
        priority: int = 0,
        shared: Mapping[str, object] | None = None,
    ) -> Mapped:
        """Splits one large batch over all workers, as `Router.map` does. Cancelling it cancels all parts."""

        async def send(inputs: Mapping[str, object], left_s: float) -> Reply:
            return await self.infer(model, inputs, timeout_s=left_s, priority=priority)

        return await map_batch_async(self._core, send, model, batch, shared or {}, timeout_s)

    async def resident(self, value: object) -> Resident:
        """A handle of a large input that many requests use, as `Router.resident` makes it; hashed beside the loop."""
        self._core.check_usable()
        return await asyncio.to_thread(Resident, value)

    def models(self) -> tuple[str, ...]:
        """The names of the models that nodes take requests for, sorted."""
        self._core.check_usable()
        with self._core.lock:
            return self._core.table.models()

    def models_reached(self) -> tuple[str, ...]:
        """Those of `models` that can be had at this moment: of nodes that a link reaches and that are not silent."""
        self._core.check_usable()
        with self._core.lock:
            return self._core.table.models_reached()

    def takes_any(self) -> bool:
        """Whether a node is reached whose models nobody told (`static:`), so that any may be asked of it."""
        with self._core.lock:
            return self._core.table.takes_any()

    def explain(self, request_id: str) -> tuple[Decision, ...]:
        """Why a request went where it went, as `Router.explain` tells it."""
        return self._core.explain(request_id)

    def statistics(self) -> RouterStatistics:
        """What is going on now."""
        return self._opened.statistics()

    async def close(self) -> None:
        """Takes no new request, lets running ones end for `close_timeout_s`, then ends them. Safe to call twice."""
        await asyncio.to_thread(self._opened.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<AsyncRouter {'closed' if self._core.closed else 'open'}, {self._core.table!r}>"


class Connecting:
    """A router to be: awaited, it is one; entered by `async with`, it is one that is closed at the end."""

    __slots__ = ("_config", "_router", "_timeout_s", "_url")

    def __init__(self, url: str, config: RouterConfig | None, timeout_s: float) -> None:
        self._url = url
        self._config = config
        self._timeout_s = timeout_s
        self._router: AsyncRouter | None = None

    def __await__(self) -> Generator[object, None, AsyncRouter]:
        return self._open().__await__()

    async def _open(self) -> AsyncRouter:
        # The registry is read from a file or a server: that would hold up the caller's loop.
        return AsyncRouter(await asyncio.to_thread(open_router, self._url, self._config, self._timeout_s))

    async def __aenter__(self) -> AsyncRouter:
        self._router = await self._open()
        return self._router

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._router is not None:
            await self._router.close()


async def _drive(core: Core, life: Life, staged: Staged | None, submit: Submit) -> Reply:
    """Carries out what the life of a request yields, on the running loop; `staged` is given back when it fails. What
    is hedged runs on the loop that `submit` leads to."""
    outcome: Answer | OverspillError | None = None
    step: Attempt | Wait | Read | None = None
    try:
        while True:
            step = life.send(outcome)
            if isinstance(step, Attempt):
                if step.beside is not None and core.beside is not None:
                    core.beside(step.beside)
                try:
                    if core.hedger is None:
                        outcome = await step.link.call_async(step.call, step.deadline)
                    else:
                        outcome = await asyncio.wrap_future(submit(race(core.hedger, step)))
                except OverspillError as error:
                    outcome = error
            elif isinstance(step, Read):
                core.read(step)
                outcome = None
            else:
                await asyncio.sleep(step.delay_s)
                outcome = None
    except StopIteration as end:
        reply: Reply = end.value
        return reply
    except OverspillError:  # not a cancellation: a thread of the rpc wire may still be reading what it sends
        if staged is not None:
            release(staged)
        raise
    finally:
        life.close()
        step = outcome = None  # an error's traceback holds this frame: it must not hold the error too
