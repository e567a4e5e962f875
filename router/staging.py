"""Brings inputs into the memory that they are sent from: copied once, before a worker is picked.

Bodies below 64 KiB become bytes. Larger ones go into a slot of the arena that the first local node can reach, or of the
router's own, and a spill or a retry is sent from the same slot. Services send the same names, dtypes and shapes again
and again, so where each tensor lies (and that the model takes it) is worked out once and kept. This module never sends.
Read `router/core.py` next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.dtypes import DType, dtype_of
from fabric.errors import ResourceExhausted, RouterClosed
from fabric.layout import Layout, TensorSpec, layout_of
from fabric.memory.copying import copy_array
from fabric.memory.lease import Lease, tensor_view
from fabric.message import SMALL_BODY_BYTES, Body, Tensor, small_body, tensors_of, write_tensors
from router.inputs import check
from router.resident import Referring, Resident

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from discovery.instance import ModelFacts
    from fabric.memory.arena import Arena

_PLANS_MAX = 1024
"""Shapes that are remembered; a caller whose every request has another shape plans each, which costs about 10 µs."""

Staged = Body | Referring
"""The inputs of one request, in the memory that they are sent from."""
_PlanKey = tuple[tuple[str, "np.dtype[Any]", tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one set of names, dtypes and shapes is laid out. `paddings`: what follows each tensor of a small body."""

    layout: Layout
    facts: ModelFacts | None
    paddings: tuple[bytes, ...]


class Staging:  # mutable: remembers plans
    """Stages the inputs of one router. `shared_arena` gives the arena of a local node, or None; then `own` is used.
    `blame` adds to the error of a full arena who holds it; `affinity_ms` bounds what a missing resident costs."""

    __slots__ = ("_affinity_ms", "_blame", "_own", "_plans", "_shared_arena")

    def __init__(
        self,
        own: Arena | None,
        shared_arena: Callable[[], Arena | None],
        blame: Callable[[ResourceExhausted], ResourceExhausted],
        affinity_ms: float = 0.0,
    ) -> None:
        self._affinity_ms = affinity_ms
        self._own = own
        self._shared_arena = shared_arena
        self._blame = blame
        self._plans: dict[_PlanKey, _Plan] = {}

    def stage(self, facts: ModelFacts | None, inputs: Mapping[str, object]) -> Staged:
        """Checks the inputs against `facts` and copies them; residents among them are referred to. Raises
        InvalidArgument, ResourceExhausted."""
        try:
            arrays: Mapping[str, Any] = inputs
            key: _PlanKey = tuple([(name, array.dtype, array.shape) for name, array in arrays.items()])
            plan = self._plans.get(key)
        except (AttributeError, TypeError):  # not all of them are numpy arrays
            return self._stage_any(facts, inputs)
        if plan is None or plan.facts is not facts:
            plan = self._plan(key, facts, inputs) if key else None
            if plan is None:
                return self._stage_any(facts, inputs)
        if plan.layout.body_bytes >= SMALL_BODY_BYTES:
            return self._large(plan.layout, inputs)
        if len(plan.paddings) == 1:
            (array,) = inputs.values()
            return Body(plan.layout, array.tobytes() + plan.paddings[0])  # type: ignore[attr-defined]
        parts: list[bytes] = []
        for array, padding in zip(inputs.values(), plan.paddings, strict=True):
            parts += (array.tobytes(), padding)  # type: ignore[attr-defined]
        return Body(plan.layout, b"".join(parts))

    def _plan(self, key: _PlanKey, facts: ModelFacts | None, inputs: Mapping[str, object]) -> _Plan | None:
        """Plans a set of plain arrays; None where one must be converted first (BYTES, BF16, foreign byte order)."""
        specs = []
        for name, array in inputs.items():
            if not isinstance(array, np.ndarray):
                return None
            dtype = dtype_of(array)
            if dtype is DType.BYTES or dtype.numpy != array.dtype:
                return None
            specs.append(TensorSpec(name, dtype, array.shape, array.nbytes))
        layout = layout_of(tuple(specs))
        if facts is not None:
            check(facts, specs)
        ends = (*layout.offsets[1:], layout.body_bytes)
        gaps = [end - at - spec.nbytes for spec, at, end in zip(specs, layout.offsets, ends, strict=True)]
        plan = _Plan(layout, facts, tuple(bytes(gap) for gap in gaps))
        if len(self._plans) >= _PLANS_MAX:
            self._plans.clear()  # simpler than an order of use, and as rare as a thousand new shapes
        self._plans[key] = plan
        return plan

    def _stage_any(self, facts: ModelFacts | None, inputs: Mapping[Any, object]) -> Staged:
        if isinstance(inputs, Mapping):
            residents = {name: value for name, value in inputs.items() if isinstance(value, Resident)}
            if residents:
                return self._refer(facts, inputs, residents)
        sources = tensors_of(inputs)
        layout = layout_of(tuple(source.spec for source in sources))
        if facts is not None:
            check(facts, layout.specs)
        if layout.body_bytes < SMALL_BODY_BYTES:
            return small_body(sources)
        lease = self.lease(layout.body_bytes)
        try:
            write_tensors(lease.view, layout, sources)
        except BaseException:  # an interrupt too: whoever keeps the error must not keep the slot
            lease.release()
            raise
        return Body(layout, lease)

    def _refer(
        self, facts: ModelFacts | None, inputs: Mapping[str, object], residents: dict[str, Resident]
    ) -> Referring:
        """Stages what is not resident."""
        sources = {name: Tensor.of(name, value) for name, value in inputs.items() if name not in residents}
        specs = tuple(residents[name].spec(name) if name in residents else sources[name].spec for name in inputs)
        if facts is not None:
            check(facts, specs)
        layout = layout_of(specs)
        body = self.leased_body(layout) if layout.body_bytes >= SMALL_BODY_BYTES else None
        small = bytearray(layout.body_bytes if body is None else 0)
        view = memoryview(small) if body is None else body.view()
        for spec, offset in zip(layout.specs, layout.offsets, strict=True):
            if not spec.referred and spec.nbytes:
                data, target = sources[spec.name].data, tensor_view(view, spec, offset)
                copy_array(target, data if data.shape == target.shape else data.reshape(target.shape))
        return self.referring(body or Body(layout, bytes(small)), residents.values())

    def leased_body(self, layout: Layout) -> Body:
        """Memory for a body that is written in place. Raises ResourceExhausted."""
        return Body(layout, self.lease(layout.body_bytes))

    def referring(self, body: Body, residents: Iterable[Resident]) -> Referring:
        """A staged body with the residents that it refers to."""
        by_name = {resident.digest: resident for resident in residents}
        return Referring(body, tuple(by_name.values()), self.lease, self._affinity_ms)

    def _large(self, layout: Layout, inputs: Mapping[str, object]) -> Body:
        lease = self.lease(layout.body_bytes)
        window = lease.view
        try:
            for spec, offset, array in zip(layout.specs, layout.offsets, inputs.values(), strict=True):
                target: np.ndarray[Any, Any] = np.ndarray(spec.shape, spec.dtype.numpy, buffer=window, offset=offset)
                copy_array(target, array)  # type: ignore[arg-type]
        except BaseException:  # an interrupt too: whoever keeps the error must not keep the slot
            lease.release()
            raise
        return Body(layout, lease)

    def lease(self, nbytes: int) -> Lease:
        """Memory for a body, where the nearest node can reach it. Raises ResourceExhausted, naming who holds it."""
        shared, own = self._shared_arena(), self._own
        arena = shared or own
        if arena is None:
            raise RouterClosed("the router was closed; make another one with Router.connect")
        try:
            return Lease.of(arena, nbytes)
        except ResourceExhausted as error:
            # The node died, which its link has not told yet: the request can go to another one.
            if arena is shared and shared.retired and own is not None:
                return self._lease_own(own, nbytes)
            raise self._blame(error) from None

    def _lease_own(self, own: Arena, nbytes: int) -> Lease:
        try:
            return Lease.of(own, nbytes)
        except ResourceExhausted as error:
            raise self._blame(error) from None

    def close(self) -> None:
        """Lets go of the own arena; its memory stays while a view of it is alive."""
        own, self._own = self._own, None
        if own is not None:
            own.close_fd()


def release(staged: Staged) -> None:
    """Gives back what `Staging.stage` leased for a request that failed, though somebody keeps the error, whose
    traceback reaches the body. A node that may still read it keeps the slot in quarantine."""
    body = staged.body if isinstance(staged, Referring) else staged
    if not isinstance(body.memory, bytes):
        body.memory.release()
