"""One request on one model: its inputs checked and shown, the model run, its outputs laid out.

Descriptors repeat from request to request, so what follows from them (which arrays to make, where, copied or viewed) is
worked out once and kept as a plan. Whatever the model raises becomes a typed error with the model's name; this module
sends nothing and knows no socket. Read `workers/executor.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, final

from fabric.card_place import place_in
from fabric.dtypes import DType
from fabric.errors import (
    Fate,
    InvalidArgument,
    ModelBroken,
    OverspillError,
    ResourceExhausted,
    because,
)
from fabric.layout import parse_layout
from workers.backends.base import Declared, Inputs, Outputs, fits
from workers.backends.choose import nobody, open_backend
from workers.card_regions import CardTargets, regions_of
from workers.faults import failure, place, told
from workers.plans import NONE_HELD, Plan, Step, input_array, targets_of
from workers.warming import run_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.layout import Layout, TensorSpec
    from workers.backends.base import Backend, Targets
    from workers.card_rooms import CardRooms
    from workers.handover import Loaded
    from workers.held import HeldResidents
    from workers.modelconfig import ModelConfig

PLANS_MAX: Final = 1024
ELEMENTS_MAX: Final = 1 << 48
"""Of an empty tensor too: numpy multiplies dimensions up before it looks whether one of them is 0."""


@final
@dataclass(init=False, slots=True)
class Run:  # mutable: made for each request, see fabric/frame_values.py
    """What came of a run: the reply's layout, its bytes where they did not fit the slot, and how long it took, with the
    parts before and after the model's own code."""

    layout: Layout
    aside: bytes | None
    compute_us: int
    input_us: int
    output_us: int

    def __init__(
        self,
        layout: Layout,
        aside: bytes | None,
        compute_us: int,
        input_us: int,
        output_us: int,
    ) -> None:
        self.layout = layout
        self.aside = aside
        self.compute_us = compute_us
        self.input_us = input_us
        self.output_us = output_us


class LoadedModel:  # mutable: plans are added as requests come
    """A model that an executor has loaded; `find` gives another one of it, for an ensemble. Raises ModelBroken or
    MissingDependency when it cannot be."""

    def __init__(
        self, config: ModelConfig, threads: int, *, on_gpu: bool = False,
        find: Callable[[str], LoadedModel | None] = nobody, rooms: CardRooms | None = None,
    ) -> None:  # fmt: skip
        self.config = config
        self.backend: Backend = open_backend(config, threads, on_gpu=on_gpu, find=find, rooms=rooms)
        self._inputs = {decl.name: decl for decl in config.inputs}
        self.declared = Declared(config.name, config.outputs)
        self._private = config.parameter("inputs_private", "auto")
        self._refuse_nan = config.flag("refuse_nan")
        self.reads_cards = bool(getattr(self.backend, "reads_cards", False))
        self._plans: dict[bytes, Plan] = {}

    def warm_up(self) -> tuple[int, ...]:
        """Runs the model's warm-up and gives how long runs take, in microseconds; empty where it has none.

        It runs twice and the second one counts: the first may compile for seconds, which no request will do again.
        """
        try:
            if not self.backend.warm_up():
                return run_samples(self)
            began = monotonic_ns()
            self.backend.warm_up()
            return ((monotonic_ns() - began) // 1000, *run_samples(self))
        except OverspillError:
            raise
        except Exception as error:  # a model's own code may raise anything; it is refused, others serve
            where = place(error, self.config.path)
            broken = ModelBroken(f"model {self.config.name!r} fails in its warm-up: {told(error)}{where}")
            raise because(broken, error) from error

    def close(self) -> None:
        """Lets go what the model holds beyond itself; it is not called afterwards."""
        close = getattr(self.backend, "close", None)  # most backends hold nothing of that kind
        if close is not None:
            close()

    def take_steps(self) -> tuple[Loaded, ...]:
        """What the steps of an ensemble took in its last run, once; nothing of any other model."""
        take = getattr(self.backend, "take_ran", None)
        return take() if take is not None else ()

    def plan(self, descriptors: bytes, body_bytes: int) -> Plan:
        """The plan for a request's descriptors. Raises InvalidArgument when they are not what the model declares, and
        ProtocolError when they are no descriptors."""
        plan = self._plans.get(descriptors)
        if plan is None:
            plan = self._make_plan(parse_layout(descriptors))
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[descriptors] = plan
        if plan.body_bytes > body_bytes:
            raise InvalidArgument(f"the inputs take {plan.body_bytes} bytes and {body_bytes} came; send all of them")
        return plan

    def run(
        self, plan: Plan, memory: memoryview, body_at: int, reply: memoryview, held: HeldResidents = NONE_HELD
    ) -> Run:
        """Runs one request. `memory` is the tenant's arena, read-only, `reply` the slot for the outputs, `held` what a
        request may refer to.

        Raises ResidentMissing where it refers to something else, and InvalidArgument, ModelFailed or ResourceExhausted
        with fate `ran` once the model's code has begun. What the model's author should see the traceback of is their
        cause.
        """
        began = monotonic_ns()
        inputs = self.inputs_of(plan, memory, body_at, held)
        if not plan.targets:
            return self.run_on(inputs, reply, began)
        targets = CardTargets(regions_of(held), plan.targets)
        run = self.run_on(inputs, reply, began, targets if self.reads_cards else None)
        targets.store(run.layout, memoryview(run.aside) if run.aside is not None else reply)
        return run

    def inputs_of(self, plan: Plan, memory: memoryview, body_at: int, held: HeldResidents) -> Inputs:
        """The inputs of a request, as `run` takes them and raises of them."""
        name = self.config.name
        try:
            arrays = {step.name: input_array(step, memory, body_at, name, held) for step in plan.steps}
            kept = {step.name: step.resident for step in plan.steps if step.resident and not step.lies_on_card}
            return Inputs(arrays, kept, regions_of(held).arrays(plan.on_card) if plan.on_card else None)
        except MemoryError:
            raise ResourceExhausted(
                f"there is no memory to copy the inputs of model {name!r} now; send less at once, or use another node"
            ) from None

    def run_on(self, inputs: Inputs, reply: memoryview, began: int, targets: Targets | None = None) -> Run:
        """The same for inputs that were made since `began`, in nanoseconds of the monotonic clock. A model that writes
        to cards finds there where its `targets` are."""
        outputs = Outputs(self.declared, reply, targets)
        try:
            given = monotonic_ns()
            self.backend.execute(inputs, outputs)
            computed = monotonic_ns()
            layout, aside = outputs.finish()
        except OverspillError as error:
            error.fate = Fate.RAN
            raise
        except Exception as error:  # a model's own code may raise anything; the executor lives on
            fault = failure(error, self.config.name, self.config.path)
            if isinstance(fault, InvalidArgument):
                raise fault from None
            raise because(fault, error) from error
        ended = monotonic_ns()
        return Run(layout, aside, (ended - began) // 1000, (given - began) // 1000, (ended - computed) // 1000)

    def _make_plan(self, layout: Layout) -> Plan:
        targets = targets_of(layout)
        specs = layout.specs[: len(layout.specs) - len(targets)]
        sent = {spec.name: spec for spec in specs}
        name = self.config.name
        for missing in self._inputs.keys() - sent.keys():
            decl = self._inputs[missing]
            raise InvalidArgument(
                f"model {name!r} needs input {missing!r} ({decl.dtype} {list(decl.dims)}) and the request has none"
            )
        for spec in specs:
            self._check(spec)
        # The order of the configuration, so that a model sees its inputs always in the same one.
        places = dict(zip((spec.name for spec in layout.specs), layout.offsets, strict=True))
        rows = specs[0].shape[0] if self.config.max_batch_size else 1
        steps = tuple(self._step(sent[name], places[name]) for name in self._inputs)
        on_card = tuple(step for step in steps if step.lies_on_card and not step.private and self.reads_cards)
        carried = tuple(step for step in steps if step.resident and not step.referred and step not in on_card)
        rest = tuple(step for step in steps if step not in on_card)
        return Plan(rest, layout.body_bytes, rows, carried, on_card, targets)

    def _check(self, spec: TensorSpec) -> None:
        name, decl = self.config.name, self._inputs.get(spec.name)
        if decl is None:
            known = ", ".join(repr(known) for known in self._inputs)
            raise InvalidArgument(f"model {name!r} has no input {spec.name!r}; it takes {known}")
        if decl.dtype != spec.dtype.name or not fits(decl.dims, spec.shape):
            raise InvalidArgument(
                f"input {spec.name!r} of model {name!r} came as {spec.dtype.name} {list(spec.shape)};"
                f" it takes {decl.dtype} {list(decl.dims)}"
            )
        if spec.dtype is DType.BYTES and 4 * prod(spec.shape) > spec.nbytes:
            # Checked before anything is made of that size: each element has a length of four bytes, whatever it holds.
            raise InvalidArgument(
                f"input {spec.name!r} of model {name!r} claims {prod(spec.shape)} elements in {spec.nbytes} bytes;"
                " send each with its length"
            )
        if prod(max(dim, 1) for dim in spec.shape) > ELEMENTS_MAX:
            raise InvalidArgument(f"input {spec.name!r} of model {name!r} is {list(spec.shape)}, which no array can be")
        batch_max = self.config.max_batch_size
        if batch_max and spec.shape[0] > batch_max:
            raise InvalidArgument(
                f"input {spec.name!r} of model {name!r} has {spec.shape[0]} rows; at most {batch_max} go at once"
            )

    def _step(self, spec: TensorSpec, offset: int) -> Step:
        finite = self._refuse_nan and spec.dtype in {DType.FP16, DType.FP32, DType.FP64}
        private = {"all": True, "none": False}.get(self._private, spec.dtype.steers_memory)
        text = spec.dtype is DType.BYTES
        private = private or finite or text
        kept = (spec.resident, spec.referred, place_in(spec.resident) is not None)
        return Step(spec.name, spec.dtype.numpy, spec.shape, offset, spec.nbytes, private, finite, text, *kept)
