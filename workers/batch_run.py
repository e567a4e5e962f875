"""Several requests of one model run as one: their inputs gathered, the model run once, its outputs given back by rows.

Inputs are gathered into the executor's own memory, so that each is copied once and nobody can change what was checked;
outputs go straight from the model's batch into the slot of each caller. A request that cannot run with the others is
left to run by itself, as are all of a batch that failed, if their model is idempotent: so only the guilty one fails.
This module sends nothing. Read `workers/executor.py` next.
"""

from __future__ import annotations

from math import prod
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, Protocol

import numpy as np

from fabric.dtypes import DType
from fabric.errors import ModelFailed, OverspillError, ResourceExhausted
from fabric.layout import TensorSpec, layout_of
from workers.backends.base import Inputs
from workers.execution import Run
from workers.finals import slot_of
from workers.handover import NOTHING_SPENT, Spent
from workers.plans import input_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.frame import RequestFrame
    from fabric.memory.arena import Arena
    from workers.execution import LoadedModel
    from workers.handover import Task
    from workers.plans import Plan, Step

SCRATCH_BYTES_MAX: Final = 16 << 20
"""Of gathered inputs that are kept for the next batch, each: larger ones are made anew, and page by page."""


class Member:  # mutable: filled as the batch goes
    """One request of a batch. Without `outcome` and `error` it has to run by itself. One of each batch `leads`."""

    __slots__ = ("body", "error", "leads", "outcome", "plan", "request", "slot", "spent", "task")

    def __init__(self, task: Task, request: RequestFrame) -> None:
        self.task = task
        self.request = request
        self.plan: Plan | None = None
        self.body: memoryview = memoryview(b"")
        self.slot: memoryview = memoryview(b"")
        self.outcome: Run | None = None
        self.spent = NOTHING_SPENT
        self.error: OverspillError | None = None
        self.leads = True

    def find(self, arena: Arena) -> None:
        """Looks up where its inputs lie and its reply belongs."""
        at, upto = self.request.body_offset, self.request.body_offset + self.request.body_bytes
        self.body = (arena.view[at:upto] if self.request.body_bytes else memoryview(b"")).toreadonly()
        self.slot = slot_of(arena, self.request)

    @property
    def has_run(self) -> bool:
        """Whether something became of it in the batch."""
        return self.outcome is not None or self.error is not None

    def run(self) -> Run:
        """What came of it. Raises what went wrong with the batch."""
        if self.error is not None:
            raise self.error
        assert self.outcome is not None, "asked only where it has run"
        return self.outcome


class Scratch:  # mutable: memory that one batch leaves to the next
    """What batches of one model are gathered into, and what their outputs are first written to."""

    __slots__ = ("_inputs", "outputs")

    def __init__(self) -> None:
        self._inputs: dict[str, np.ndarray[Any, Any]] = {}
        self.outputs = bytearray()

    def room(self, step: Step, rows: int) -> np.ndarray[Any, Any]:
        """An array for so many rows of an input."""
        known = self._inputs.get(step.name)
        rest = step.shape[1:]
        if known is None or known.dtype != step.dtype or known.shape[1:] != rest or len(known) < rows:
            known = np.empty((rows, *rest), step.dtype)
            if known.nbytes <= SCRATCH_BYTES_MAX:
                self._inputs[step.name] = known
        return known[:rows]


class Bench(Protocol):
    """What knows the device of an executor, and has to hear of each run."""

    def begin(self, tenant_no: int, request: RequestFrame) -> None:
        """A request is about to run. Raises OverspillError for one that cannot."""

    def end(self) -> None:
        """A model's code is over. Raises OverspillError for an error of the device that ends the run only."""


def run_batch(model: LoadedModel, members: list[Member], scratch: Scratch, bench: Bench, began_ns: int) -> None:
    """Runs what can run together, at `began_ns`, and fills it in. The members know their places."""
    ready = _plan(model, members, bench, began_ns)
    while len(ready) > 1:
        try:
            inputs, bad = _gather(ready, scratch, model.config.name)
        except MemoryError:
            error = ResourceExhausted(
                f"there is no memory to gather {len(ready)} requests of model {model.config.name!r} now; send less"
            )
            _fail(ready, error)
            return
        if not bad:
            break
        ready = [member for member in ready if member not in bad]
    else:
        return
    try:
        try:
            run = model.run_on(inputs, memoryview(scratch.outputs), began_ns)
        finally:
            bench.end()  # good or bad: an answer of a broken context must not leave this process
        rows = sum(member.plan.rows for member in ready if member.plan is not None)
        _scatter(run, memoryview(run.aside if run.aside is not None else scratch.outputs), ready, rows)
    except OverspillError as error:
        for member in ready:
            member.outcome = None
        if not model.config.idempotent:
            _fail(ready, error)
        return
    if run.aside is not None and len(run.aside) <= SCRATCH_BYTES_MAX:
        scratch.outputs = bytearray(2 * len(run.aside))
    compute_us = (monotonic_ns() - began_ns) // 1000
    output_us = max(0, compute_us - (run.compute_us - run.output_us))
    for member in ready:
        assert member.plan is not None, "it ran"
        queue_us = max(0, began_ns - member.task.arrived_ns) // 1000
        member.leads = member is ready[0]
        member.spent = Spent(compute_us, queue_us, run.input_us, output_us, member.plan.rows, rows)


def _fail(members: list[Member], error: OverspillError) -> None:
    for member in members:
        member.error = error


def _plan(model: LoadedModel, members: list[Member], bench: Bench, began_ns: int) -> list[Member]:
    """Those that can run together; whatever is wrong with another is told when it runs by itself."""
    ready: list[Member] = []
    rows = 0
    for member in members:
        if began_ns >= member.task.deadline_ns:
            continue
        try:
            member.plan = plan = model.plan(member.request.descriptors, member.request.body_bytes)
            bench.begin(member.task.tenant_no, member.request)
        except OverspillError:
            continue
        if plan.residents:
            continue  # they do not lie in its body, from which inputs are gathered
        first = ready[0].plan if ready else plan
        if first is not None and _alike(first, plan) and rows + plan.rows <= model.config.max_batch_size:
            ready.append(member)
            rows += plan.rows
    return ready


def _alike(one: Plan, other: Plan) -> bool:
    return all(
        a.dtype == b.dtype and a.shape[1:] == b.shape[1:] and b.shape[:1] == (other.rows,)
        for a, b in zip(one.steps, other.steps, strict=True)
    )


def _gather(ready: list[Member], scratch: Scratch, model: str) -> tuple[Inputs, list[Member]]:
    """The inputs of all, in order, and the members whose inputs cannot be taken."""
    plans = [member.plan for member in ready if member.plan is not None]
    rows = sum(plan.rows for plan in plans)
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    bad: list[Member] = []
    for index, step in enumerate(plans[0].steps):
        array = np.empty((rows, *step.shape[1:]), object) if step.text else scratch.room(step, rows)
        at = 0
        for member, plan in zip(ready, plans, strict=True):
            own = plan.steps[index]
            part = array[at : at + plan.rows]
            at += plan.rows
            if own.text:
                try:
                    part[:] = input_array(own, member.body, 0, model)
                except OverspillError:
                    bad.append(member)
            else:
                part[:] = np.ndarray(own.shape, own.dtype, member.body, own.offset)
                if own.finite and not np.isfinite(part).all():
                    bad.append(member)
        array.flags.writeable = False
        arrays[step.name] = array
    return Inputs(arrays), bad


def _scatter(run: Run, body: memoryview, ready: list[Member], rows: int) -> None:
    """Gives each member its rows of every output. Raises ModelFailed where an output has not one row for each."""
    cuts: list[Callable[[int, int], memoryview]] = []
    for spec, offset in zip(run.layout.specs, run.layout.offsets, strict=True):
        if not spec.shape or spec.shape[0] != rows:
            raise ModelFailed(
                f"the model sets output {spec.name!r} as {list(spec.shape)} for a batch of {rows};"
                " its first dimension must be the batch's"
            )
        cuts.append(_cutter(spec, body[offset : offset + spec.nbytes], rows))
    at = 0
    for member in ready:
        assert member.plan is not None, "it ran"
        upto = at + member.plan.rows
        pieces = [cut(at, upto) for cut in cuts]
        at = upto
        layout = layout_of(
            tuple(
                TensorSpec(spec.name, spec.dtype, (member.plan.rows, *spec.shape[1:]), len(piece))
                for spec, piece in zip(run.layout.specs, pieces, strict=True)
            )
        )
        target: memoryview | bytearray = member.slot
        if layout.body_bytes > len(target):
            target = bytearray(layout.body_bytes)
        for offset, piece in zip(layout.offsets, pieces, strict=True):
            target[offset : offset + len(piece)] = piece
        aside = bytes(target) if isinstance(target, bytearray) else None
        member.outcome = Run(layout, aside, run.compute_us, run.input_us, run.output_us)


def _cutter(spec: TensorSpec, body: memoryview, rows: int) -> Callable[[int, int], memoryview]:
    """A function that gives the bytes of rows from one to below another."""
    if spec.dtype is not DType.BYTES:
        row_bytes = spec.nbytes // rows

        def cut(start: int, end: int) -> memoryview:
            return body[start * row_bytes : end * row_bytes]

        return cut
    starts, at = [0], 0
    elements = prod(spec.shape[1:])
    for _ in range(rows):
        for _ in range(elements):
            at += 4 + int.from_bytes(body[at : at + 4], "little")
        starts.append(at)

    def cut_text(start: int, end: int) -> memoryview:
        return body[starts[start] : starts[end]]

    return cut_text
