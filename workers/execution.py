"""One request on one model: its inputs checked and shown, the model run, its outputs laid out.

Descriptors repeat from request to request, so what follows from them (which arrays to make, where, copied or viewed) is
worked out once and kept as a plan. Whatever the model raises becomes a typed error with the model's name; this module
sends nothing and knows no socket. Read `workers/executor.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from fabric.dtypes import DType, bytes_decode
from fabric.errors import (
    Fate,
    InvalidArgument,
    ModelBroken,
    OverspillError,
    ResidentMissing,
    ResourceExhausted,
    because,
)
from fabric.layout import Layout, parse_layout
from workers.backends.base import Declared, Inputs, Outputs, fits
from workers.backends.choose import nobody, open_backend
from workers.faults import failure, place, told
from workers.held import HeldResidents
from workers.warming import run_samples

if TYPE_CHECKING:
    from collections.abc import Callable

    from fabric.layout import TensorSpec
    from workers.backends.base import Backend
    from workers.handover import Loaded
    from workers.modelconfig import ModelConfig

NONE_HELD: Final = HeldResidents()
PLANS_MAX: Final = 1024
ELEMENTS_MAX: Final = 1 << 48
"""Of an empty tensor too: numpy multiplies dimensions up before it looks whether one of them is 0."""


@dataclass(frozen=True, slots=True)
class Step:
    """How one input becomes an array: `private` copies it, `finite` refuses NaN and infinity, `text` decodes BYTES;
    `resident` names one that is kept, which is `referred` where the body does not bring it."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    private: bool
    finite: bool
    text: bool
    resident: bytes
    referred: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for one set of descriptors, how many bytes of body they read, how many batch items they are, and those
    steps that bring a resident."""

    steps: tuple[Step, ...]
    body_bytes: int
    rows: int
    carried: tuple[Step, ...]

    @property
    def residents(self) -> bool:
        """Whether any input is a resident."""
        return any(step.resident for step in self.steps)


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
        find: Callable[[str], LoadedModel | None] = nobody,
    ) -> None:  # fmt: skip
        self.config = config
        self.backend: Backend = open_backend(config, threads, on_gpu=on_gpu, find=find)
        self._inputs = {decl.name: decl for decl in config.inputs}
        self.declared = Declared(config.name, config.outputs)
        self._private = config.parameter("inputs_private", "auto")
        self._refuse_nan = config.flag("refuse_nan")
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
        return self.run_on(self.inputs_of(plan, memory, body_at, held), reply, began)

    def inputs_of(self, plan: Plan, memory: memoryview, body_at: int, held: HeldResidents) -> Inputs:
        """The inputs of a request, as `run` takes them and raises of them."""
        name = self.config.name
        try:
            arrays = {step.name: input_array(step, memory, body_at, name, held) for step in plan.steps}
            return Inputs(arrays, {step.name: step.resident for step in plan.steps if step.resident})
        except MemoryError:
            raise ResourceExhausted(
                f"there is no memory to copy the inputs of model {name!r} now; send less at once, or use another node"
            ) from None

    def run_on(self, inputs: Inputs, reply: memoryview, began: int) -> Run:
        """The same for inputs that were made since `began`, in nanoseconds of the monotonic clock."""
        outputs = Outputs(self.declared, reply)
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
        sent = {spec.name: spec for spec in layout.specs}
        name = self.config.name
        for missing in self._inputs.keys() - sent.keys():
            decl = self._inputs[missing]
            raise InvalidArgument(
                f"model {name!r} needs input {missing!r} ({decl.dtype} {list(decl.dims)}) and the request has none"
            )
        for spec in layout.specs:
            self._check(spec)
        # The order of the configuration, so that a model sees its inputs always in the same one.
        places = dict(zip((spec.name for spec in layout.specs), layout.offsets, strict=True))
        rows = layout.specs[0].shape[0] if self.config.max_batch_size else 1
        steps = tuple(self._step(sent[name], places[name]) for name in self._inputs)
        carried = tuple(step for step in steps if step.resident and not step.referred)
        return Plan(steps, layout.body_bytes, rows, carried)

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
        kept = (spec.resident, spec.referred)
        return Step(spec.name, spec.dtype.numpy, spec.shape, offset, spec.nbytes, private, finite, text, *kept)


def input_array(
    step: Step, memory: memoryview, body_at: int, model: str, held: HeldResidents = NONE_HELD
) -> np.ndarray[Any, Any]:
    """One input out of a body that begins at `body_at`, or out of what is held. Raises InvalidArgument for what the
    model refuses, ResidentMissing for what is not held."""
    if step.resident and (kept := _resident(step, held)) is not None:
        return _checked(kept, step, model)
    at = body_at + step.offset
    if step.text:
        array: np.ndarray[Any, Any] = bytes_decode(bytes(memory[at : at + step.nbytes]), prod(step.shape)).reshape(
            step.shape
        )
        return array
    array = np.ndarray(step.shape, step.dtype, memory, at)
    if step.private:
        array = array.copy()
        array.flags.writeable = False
        array = _checked(array, step, model)
    return array


def _checked(array: np.ndarray[Any, Any], step: Step, model: str) -> np.ndarray[Any, Any]:
    if step.finite and not np.isfinite(array).all():
        raise InvalidArgument(
            f"input {step.name!r} of model {model!r} holds NaN or infinity, which it refuses; send finite numbers"
        )
    return array


def _resident(step: Step, held: HeldResidents) -> np.ndarray[Any, Any] | None:
    """A resident over its own memory, which nobody can write to any more, so that it is never copied; None for one that
    lies in the body alone."""
    content = held.find(step.resident)
    if content is not None:
        return np.ndarray(step.shape, step.dtype, content)
    if step.referred:
        raise ResidentMissing(
            f"resident {step.resident.hex()[:16]} (input {step.name!r}) is not here yet; send its content with the"
            " request once"
        )
    return None
