"""Resident inputs as a caller sees them: hashed once, sent to a node once, then referred to by what they hold.

`Router.resident(array)` gives a handle that stands for the array in `infer`, `map` and `prepare`. A request with such
handles has a body that refers to all of them; a worker that is not known to keep one gets a body that brings it. Which
worker keeps what is a guess: a node drops what was not used for long, says so, and is sent the content once more. What
a worker lacks costs its way there, so requests go where their residents are, but only as far as the bound on that part
of the price: past it, the shorter queue wins, and another worker gets a copy. This module never sends. Read
`router/staging.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType
from fabric.errors import InvalidArgument, OverspillError, ResidentMissing
from fabric.layout import TensorSpec, layout_of
from fabric.memory.lease import tensor_view
from fabric.message import SMALL_BODY_BYTES, Body, Tensor
from fabric.resident import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.memory.lease import Lease
    from router.dispatch import Attempt
    from router.workers import Worker


class Resident:
    """An input that nodes keep. Made by `Router.resident`; it may be used with any router, and for as long as it lives.

    `array` is a private copy, read-only, so that what the name says stays true; `dims` is its shape.
    """

    __slots__ = ("_kind", "array", "digest", "dims", "nbytes")

    def __init__(self, value: object) -> None:
        tensor = Tensor.of("resident", value)
        spec = tensor.spec
        if spec.dtype is DType.BYTES or not spec.nbytes:
            what = "BYTES" if spec.dtype is DType.BYTES else "empty"
            raise InvalidArgument(f"a resident is {what}; give an array of numbers that holds something")
        self.array: np.ndarray[Any, Any] = np.array(tensor.data, copy=True, order="C")
        self.array.flags.writeable = False
        self.nbytes = spec.nbytes
        self._kind, self.dims = spec.dtype, spec.shape
        self.digest = digest_of(self.array.reshape(-1).view(np.uint8).data)

    def spec(self, name: str) -> TensorSpec:
        """The input of that name, referred to."""
        return TensorSpec(name, self._kind, self.dims, self.nbytes, self.digest, referred=True)

    def __repr__(self) -> str:
        return f"<Resident {self.digest.hex()[:12]}: {self._kind.name}{list(self.dims)}, {self.nbytes} bytes>"


class Referring:
    """The staged inputs of one request that refers to `residents`: `body` brings none of them. `lease` gives memory
    for a body that does; `bound_ms` is the most that what a worker lacks counts in its price."""

    __slots__ = ("_bound_ms", "_lease", "body", "nbytes", "residents")

    def __init__(
        self, body: Body, residents: tuple[Resident, ...], lease: Callable[[int], Lease], bound_ms: float
    ) -> None:
        self.body = body
        self.residents = residents
        self.nbytes = sum(resident.nbytes for resident in residents)
        self._lease = lease
        self._bound_ms = bound_ms

    def missing(self, worker: Worker) -> tuple[Resident, ...]:
        """What the worker is not known to keep."""
        holds = worker.holds
        return tuple(resident for resident in self.residents if resident.digest not in holds)

    def claim(self, worker: Worker) -> tuple[Resident, ...]:
        """The same, where the worker is about to be sent it: requests after this one count on that."""
        missing = self.missing(worker)
        for resident in missing:
            worker.will_hold(resident.digest)
        return missing

    def missing_ms(self, worker: Worker, nbytes: int, now: float) -> float:
        """What it costs to bring that along with `nbytes` of other bytes, bounded."""
        lacking = sum(resident.nbytes for resident in self.missing(worker))
        if not lacking:
            return 0.0
        line = worker.line
        more_ms = line.predict_ms(nbytes + lacking, now) - line.predict_ms(nbytes, now)
        return min(max(more_ms, 0.0), self._bound_ms)

    def body_for(self, missing: tuple[Resident, ...]) -> Body:
        """The body that brings those. Raises ResourceExhausted where there is no memory for it now."""
        if not missing:
            return self.body
        brought = {resident.digest: resident for resident in missing}
        lean = self.body.layout
        specs = tuple(
            TensorSpec(spec.name, spec.dtype, spec.shape, spec.nbytes, spec.resident)
            if spec.resident in brought
            else spec
            for spec in lean.specs
        )
        layout = layout_of(specs)
        small = layout.body_bytes < SMALL_BODY_BYTES
        target: bytearray | Lease = bytearray(layout.body_bytes) if small else self._lease(layout.body_bytes)
        view = memoryview(target) if isinstance(target, bytearray) else target.view
        source = self.body.view()
        for spec, offset, lean_at in zip(layout.specs, layout.offsets, lean.offsets, strict=True):
            if not spec.resident:
                view[offset : offset + spec.nbytes] = source[lean_at : lean_at + spec.nbytes]
            elif not spec.referred:
                np.copyto(tensor_view(view, spec, offset), brought[spec.resident].array.reshape(spec.shape))
        return Body(layout, bytes(target) if isinstance(target, bytearray) else target)

    def __repr__(self) -> str:
        return f"<Referring to {len(self.residents)} residents of {self.nbytes} bytes>"


class Sent:  # mutable: counts
    """How many residents were sent, and how often a worker lacked one that it was thought to keep. The router's lock
    guards it."""

    __slots__ = ("missed", "sent")

    def __init__(self) -> None:
        self.missed = self.sent = 0

    def note(self, attempt: Attempt) -> None:
        """An attempt that refers to residents is over. Only an answer says that the worker keeps what it was sent; one
        that lacks something may lack all."""
        holds, outcome, needs = attempt.picked.worker.holds, attempt.outcome, attempt.needs
        assert needs is not None, "asked before"
        self.sent += len(attempt.missing)
        memory = attempt.call.body.memory
        if attempt.missing and outcome is not None and not isinstance(memory, bytes):
            memory.release()  # a node that may still read it keeps the slot in quarantine
        if isinstance(outcome, ResidentMissing):
            self.missed += 1
            holds.difference_update(resident.digest for resident in needs.residents)
        elif outcome is None or isinstance(outcome, OverspillError):
            holds.difference_update(resident.digest for resident in attempt.missing)


def parts_of(staged: Body | Referring) -> tuple[Body, Referring | None]:
    """The body that refers to all residents of a request, and these."""
    return (staged.body, staged) if isinstance(staged, Referring) else (staged, None)


def bring(attempt: Attempt) -> None:
    """Makes the call bring what its worker lacks. Raises ResourceExhausted where there is no memory for that now."""
    if attempt.needs is not None:
        attempt.call.body = attempt.needs.body_for(attempt.missing)
