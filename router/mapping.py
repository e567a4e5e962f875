"""`Router.map`: one large batch, cut into parts that run on all workers at once, and its outputs in order.

The caller's thread hands out parts to a few threads, each of which sends one part at a time as any request is sent.
This module decides nothing: `router/split.py` cuts, `router/core.py` picks. Read `router/client.py` next.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any

from fabric.errors import InvalidArgument
from router.split import join, plan, rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
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
    both = [name for name in batch if name in shared]
    if both:
        raise InvalidArgument(f"input {both[0]!r} is in the batch and shared; give it once")
    rows, arrays = rows_of(batch)
    end_s = core.clock() + timeout_s
    split = plan(rows, *_room(core, model, sum(array.nbytes for array in arrays.values())))

    def part(rows: slice) -> Reply:
        inputs = {**shared, **{name: array[rows] for name, array in arrays.items()}}
        return send(inputs, max(end_s - core.clock(), 1e-6))

    with ThreadPoolExecutor(split.lanes, thread_name_prefix="overspill-map") as pool:
        futures: list[Future[Reply]] = [pool.submit(part, rows) for rows in split.parts]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            replies = [future.result() for future in futures if future.done()]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    assert len(replies) == len(split.parts), "each part was answered, or one raised"
    mapped = Mapped(join(model, split.parts, replies), tuple(reply.trace for reply in replies))
    for reply in replies:
        reply.close()
    return mapped
