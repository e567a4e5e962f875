"""What `infer` gives back: outputs as read-only arrays, and the trace of how they came to be.

A reply owns the memory its outputs lie in, and so does each array made from it: the memory goes back when the last of
them is gone. Replies that callers keep would starve the arena, so once they hold half of it further ones are copied
out (`Holdings`). This module never sends. Read `router/client.py` next.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from fabric.errors import InvalidArgument, ResourceExhausted
from fabric.memory.lease import Lease, tensors
from router.price import Price

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    import numpy as np

    from fabric.layout import TensorSpec
    from fabric.memory.arena import Arena
    from fabric.transport import Answer
    from router.dispatch import Attempt


@dataclass(frozen=True, slots=True)
class Trace:
    """How one reply came to be. `compute_ms` and `queue_ms` are the node's own figures; `transport_ms` is what was left
    of the last attempt's round trip. `generation` is that of the executor, `price` what the worker was picked for."""

    request_id: str
    worker: str
    wire: str
    lane: bool
    attempts: int
    queue_ms: float
    compute_ms: float
    transport_ms: float
    generation: int
    price: Price
    candidates: int


class Reply(Mapping[str, "np.ndarray[Any, Any]"]):  # mutable: closed once
    """Outputs by name, as read-only numpy arrays; `with` closes it. BYTES outputs are object arrays of bytes."""

    __slots__ = (
        "__weakref__",
        "_arrays",
        "_attempts",
        "_compute_us",
        "_generation",
        "_id",
        "_lane",
        "_layout",
        "_memory",
        "_picked",
        "_queue_us",
        "_round_trip_ms",
        "_trace",
        "_wire",
    )

    def __init__(self, answer: Answer, attempt: Attempt, attempts: int) -> None:
        # Neither the answer nor the attempt is kept, since they hold memory that may go back before the reply does. The
        # trace is made when somebody reads it: few do.
        self._memory: bytes | Lease | None
        self._layout = answer.layout
        self._memory = answer.memory
        self._generation = answer.generation
        self._queue_us = answer.queue_us
        self._compute_us = answer.compute_us
        self._wire = answer.wire
        self._lane = answer.lane
        self._id = attempt.call.id
        self._picked = attempt.picked
        self._round_trip_ms = attempt.round_trip_ms
        self._attempts = attempts
        self._arrays: dict[str, np.ndarray[Any, Any]] | None = None
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """How this reply came to be; it can be read after `close` too."""
        if self._trace is None:
            self._trace = self._make_trace()
        return self._trace

    def parts(self) -> tuple[tuple[TensorSpec, memoryview], ...]:
        """Each output's spec and its bytes, read-only and uncopied: BYTES stay in their serialised form. For whoever
        passes them on; no view may be read after `close`."""
        memory, layout = self._memory, self._layout
        if memory is None:
            raise InvalidArgument("the reply was closed; read its outputs before that")
        view = (memory.view if isinstance(memory, Lease) else memoryview(memory)).toreadonly()
        places = zip(layout.specs, layout.offsets, strict=True)
        return tuple((spec, view[offset : offset + spec.nbytes]) for spec, offset in places)

    @property
    def arena(self) -> Arena | None:
        """The arena that `parts` lie in, if they do, for whoever has another process read it."""
        return self._memory.arena if isinstance(self._memory, Lease) else None

    def close(self) -> None:
        """Lets go of the outputs. Their memory goes back now, or when the last array that was taken from it is gone."""
        self._memory = self._arrays = None

    def __getitem__(self, name: str) -> np.ndarray[Any, Any]:
        arrays = self._opened()
        try:
            return arrays[name]
        except KeyError:
            raise KeyError(f"the reply has no output {name!r}; it has {', '.join(arrays) or 'none'}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._opened())

    def __len__(self) -> int:
        return len(self._opened())

    def _opened(self) -> dict[str, np.ndarray[Any, Any]]:
        if self._arrays is None:
            memory, layout = self._memory, self._layout
            if memory is None:
                raise InvalidArgument("the reply was closed; read its outputs before that")
            view = memory.view if isinstance(memory, Lease) else memoryview(memory)
            self._arrays = {spec.name: array for spec, array in zip(layout.specs, tensors(view, layout), strict=True)}
        return self._arrays

    def _make_trace(self) -> Trace:
        queue_ms, compute_ms = self._queue_us / 1000.0, self._compute_us / 1000.0
        return Trace(
            request_id=str(self._id),
            worker=self._picked.worker.name,
            wire=self._wire.value,
            lane=self._lane,
            attempts=self._attempts,
            queue_ms=queue_ms,
            compute_ms=compute_ms,
            transport_ms=max(0.0, self._round_trip_ms - queue_ms - compute_ms),
            generation=self._generation,
            price=Price.of(self._picked.terms),
            candidates=self._picked.candidates,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._memory is None:
            return "<Reply, closed>"
        outputs = (f"{spec.name} {spec.dtype.name}{list(spec.shape)}" for spec in self._layout.specs)
        return f"<Reply of {', '.join(outputs)} from {self._picked.worker.name}>"


class Holdings:  # mutable: what replies hold of each arena
    """Which replies hold how much of the arenas. A reply past half of an arena is copied out, and counted."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._next = 0
        self._held: dict[int, tuple[int, str, int]] = {}  # loan: (arena, model, bytes)
        self._bytes: Counter[int] = Counter()  # by arena, those that nothing is held of left out
        # The end of a lease may come in any thread and inside the garbage collector: it takes no lock.
        self._ended: deque[int] = deque()
        self.copied_out = 0

    def admit(self, answer: Answer, model: str) -> Answer:
        """Books an answer's lease, or copies the answer out and gives the lease back."""
        lease = answer.memory
        if not isinstance(lease, Lease):
            return answer
        with self._lock:
            self._settle()
            arena = id(lease.arena)
            if self._bytes[arena] + lease.nbytes <= lease.arena.nbytes // 2:
                self._next += 1
                self._bytes[arena] += lease.nbytes
                self._held[self._next] = (arena, model, lease.nbytes)
                lease.on_end(self._ended.append, self._next)
                return answer
            self.copied_out += 1
        return _copied(answer, lease)

    def blamed(self, error: ResourceExhausted) -> ResourceExhausted:
        """The error of a full arena, with the names of those who hold it."""
        held = self.sentence()
        return type(error)(f"{error}, or close replies: {held}", error.fate) if held else error

    def sentence(self) -> str:
        """Who holds what; empty if nobody holds anything."""
        with self._lock:
            self._settle()
            nbytes: Counter[str] = Counter()
            for _, model, size in self._held.values():
                nbytes[model] += size
        return ", ".join(f"replies of {model} hold {size} bytes" for model, size in nbytes.most_common(3))

    @property
    def held_bytes(self) -> int:
        """Bytes of all arenas that replies hold."""
        with self._lock:
            self._settle()
            return self._bytes.total()

    def _settle(self) -> None:
        while self._ended:
            arena, _, nbytes = self._held.pop(self._ended.popleft())
            self._bytes[arena] -= nbytes
            if not self._bytes[arena]:
                del self._bytes[arena]  # another arena may come to the same address


def _copied(answer: Answer, lease: Lease) -> Answer:
    memory = bytes(lease.view[: answer.layout.body_bytes])
    lease.release()
    return replace(answer, memory=memory)
