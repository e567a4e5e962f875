"""`map`: one large batch, cut into parts that run on all workers at once, and its outputs in order.

A blocking caller hands out parts to a few threads, an asyncio one to as many tasks; each sends one part at a time as
any request is sent. This module decides nothing: `router/split.py` cuts, `router/core.py` picks. Read
`router/client.py` next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from fabric.errors import InvalidArgument
from router.split import join, plan, rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from concurrent.futures import Future

    import numpy as np

    from router.core import Core
    from router.reply import Reply, Trace


class Mapped(Mapping[str, "np.ndarray[Any, Any]"]):
    """The outputs of a batch by name, rows in the order of the batch. `traces` tells of each part, in order."""

    __slots__ = ("_arrays", "traces")

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], traces: tuple[Trace, ...]) -> None:
        self._arrays = arrays
        self.traces = traces

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        workers = sorted({trace.worker for trace in self.traces})
        return f"<Mapped {', '.join(self._arrays)}: {len(self.traces)} parts on {', '.join(workers)}>"


def _room(core: Core, model: str, nbytes: int) -> tuple[int, float | None]:
    """How many executors take requests of a model now, and what one of `nbytes` should take on one of them."""
    core.check_usable()
    with core.lock:
        now, offer = core.clock(), core.table.offer(model)
        usable = [worker for worker in offer.everyone if not worker.why_not(now)]
        return sum(worker.ahead.executors for worker in usable), core.table.work.kind(model, nbytes).usual_ms()


class _Batch:
    """A batch that is cut: `inputs` and `left_s` are what one part is sent with."""

    def __init__(
        self, core: Core, model: str, batch: Mapping[str, object], shared: Mapping[str, object], timeout_s: float
    ) -> None:
        both = [name for name in batch if name in shared]
        if both:
            raise InvalidArgument(f"input {both[0]!r} is in the batch and shared; give it once")
        rows, self._arrays = rows_of(batch)
        self._core, self._model, self._shared = core, model, shared
        self._end_s = core.clock() + timeout_s
        self.split = plan(rows, *_room(core, model, sum(array.nbytes for array in self._arrays.values())))

    def inputs(self, rows: slice) -> Mapping[str, object]:
        """The inputs of a part."""
        return {**self._shared, **{name: array[rows] for name, array in self._arrays.items()}}

    def left_s(self) -> float:
        """The time that is left."""
        return max(self._end_s - self._core.clock(), 1e-6)

    def join(self, replies: list[Reply]) -> Mapped:
        """The outputs of all parts."""
        assert len(replies) == len(self.split.parts), "each part was answered, or one raised"
        mapped = Mapped(join(self._model, self.split.parts, replies), tuple(reply.trace for reply in replies))
        for reply in replies:
            reply.close()
        return mapped


def map_batch(
    core: Core,
    send: Callable[[Mapping[str, object], float], Reply],
    model: str,
    batch: Mapping[str, object],
    shared: Mapping[str, object],
    timeout_s: float,
) -> Mapped:
    """Cuts `batch`, sends each part with `send(inputs, timeout_s)` and joins the outputs. The first part that fails for
    good ends the rest, and its error is raised."""
    cut = _Batch(core, model, batch, shared, timeout_s)

    def part(rows: slice) -> Reply:
        return send(cut.inputs(rows), cut.left_s())

    with ThreadPoolExecutor(cut.split.lanes, thread_name_prefix="overspill-map") as pool:
        futures: list[Future[Reply]] = [pool.submit(part, rows) for rows in cut.split.parts]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            replies = [future.result() for future in futures if future.done()]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return cut.join(replies)


async def map_batch_async(
    core: Core,
    send: Callable[[Mapping[str, object], float], Awaitable[Reply]],
    model: str,
    batch: Mapping[str, object],
    shared: Mapping[str, object],
    timeout_s: float,
) -> Mapped:
    """The same, awaited. Whatever ends it early (an error, a cancel) cancels the parts that are out."""
    cut = _Batch(core, model, batch, shared, timeout_s)
    lanes = asyncio.Semaphore(cut.split.lanes)

    async def part(rows: slice) -> Reply:
        async with lanes:
            return await send(cut.inputs(rows), cut.left_s())

    parts = [asyncio.ensure_future(part(rows)) for rows in cut.split.parts]
    try:
        return cut.join(list(await asyncio.gather(*parts)))
    finally:
        for each in parts:
            each.cancel()
        await asyncio.gather(*parts, return_exceptions=True)
