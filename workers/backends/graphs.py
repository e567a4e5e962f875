"""Which shapes of a model are recorded as CUDA graphs: those that come again, up to a bound, and none after a failure.

A graph starts all of a run's kernels at once, which saves the time of launching each. It holds for the shapes and the
memory that it was recorded with, so the first run of some shapes is an ordinary one, the second is recorded and
compared with an ordinary one, and those after it replay. What cannot be recorded, or answers otherwise, is told once
and runs as ever. This module records nothing: each backend does, by its own library. Read `workers/backends/torch.py`.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    import numpy as np

_log = logging.getLogger(__name__)
GRAPHS_MAX: Final = 32
"""Of one model: each holds memory for its inputs, outputs and what lies between. The one unused for longest makes
room."""
SEEN_MAX: Final = 1024
Graph = TypeVar("Graph")


class Graphs(Generic[Graph]):  # mutable: graphs are added as shapes come again
    """The graphs of one model. `forget` is given each that makes room for another."""

    def __init__(self, model: str, limit: int = GRAPHS_MAX, forget: Callable[[Graph], None] | None = None) -> None:
        self._forget = forget
        self._model = model
        self._limit = limit
        self._graphs: dict[Hashable, Graph] = {}  # the one used last stands last
        self._seen: set[Hashable] = set()
        self.failed = ""
        """Why nothing is recorded any more."""

    def __len__(self) -> int:
        return len(self._graphs)

    def find(self, shapes: Hashable, record: Callable[[], Graph]) -> Graph | None:
        """The graph of some shapes, which `record` makes the second time that they come; None for an ordinary run.

        `record` may raise anything, also for want of memory, since it takes more than a run: then the model runs
        without graphs from now on, which is told.
        """
        graph = self._graphs.pop(shapes, None)
        if graph is not None:
            self._graphs[shapes] = graph
            return graph
        if self.failed:
            return None
        if shapes not in self._seen:
            if len(self._seen) >= SEEN_MAX:
                self._seen.clear()
            self._seen.add(shapes)
            return None
        try:
            graph = record()
        except Exception as error:  # noqa: BLE001 - a library's, and the model runs all the same
            self.fail(" ".join(str(error).split()) or type(error).__name__)
            return None
        while len(self._graphs) >= self._limit:
            oldest = self._graphs.pop(next(iter(self._graphs)))
            if self._forget is not None:
                self._forget(oldest)
        self._graphs[shapes] = graph
        return graph

    def drop(self, shapes: Hashable) -> None:
        """Forgets the graph of some shapes, if there is one."""
        self._graphs.pop(shapes, None)
        self._seen.discard(shapes)

    def fail(self, why: str) -> None:
        """Nothing is recorded any more; what was goes on."""
        self.failed = why[:300]
        _log.warning("model %s runs without CUDA graphs: %s", self._model, self.failed)


class UnlikeReplay(Exception):
    """A replay did not give what an ordinary run gives, bit by bit."""

    def __init__(self, output: str) -> None:
        super().__init__(f"a replay gives another {output!r} than an ordinary run does")


def check_alike(names: tuple[str, ...], ran: list[np.ndarray[Any, Any]], replayed: list[np.ndarray[Any, Any]]) -> None:
    """Raises UnlikeReplay unless both have the same bytes."""
    for name, one, other in zip(names, ran, replayed, strict=True):
        if one.shape != other.shape or one.tobytes() != other.tobytes():
            raise UnlikeReplay(name)
