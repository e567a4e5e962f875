"""How the inputs of one request become arrays, as worked out from its descriptors, and how each of them is made.

Descriptors repeat from request to request, so `workers/execution.py` keeps a plan for each. What can choose an address
is copied before it is checked, what is only computed with is a view of the caller's memory. This module runs nothing.
Read `workers/execution.py` next.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from fabric.card_place import TARGET, place_in
from fabric.dtypes import bytes_decode
from fabric.errors import InvalidArgument, ResidentMissing
from workers.held import HeldResidents

if TYPE_CHECKING:
    from fabric.layout import Layout, TensorSpec

NONE_HELD: Final = HeldResidents()


@dataclass(frozen=True, slots=True)
class Step:
    """How one input becomes an array: `private` copies it, `finite` refuses NaN and infinity, `text` decodes BYTES;
    `resident` names one that is kept, which is `referred` where the body does not bring it, or a place on a card (then
    `lies_on_card`), which is copied to the body's room for it unless the model reads it there."""

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
    lies_on_card: bool


@dataclass(frozen=True, slots=True)
class Target:
    """Where on a card an output is to go: the place's name, and its bytes."""

    output: str
    place: bytes
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for one set of descriptors, how many bytes of body they read, how many batch items they are, those
    steps that bring a resident or are copied from a card, those that the model reads there, and where outputs go."""

    steps: tuple[Step, ...]
    body_bytes: int
    rows: int
    carried: tuple[Step, ...]
    on_card: tuple[Step, ...] = ()
    targets: tuple[Target, ...] = ()

    @property
    def residents(self) -> bool:
        """Whether any input is a resident, or lies on a card."""
        return bool(self.on_card) or any(step.resident for step in self.steps)


def targets_of(layout: Layout) -> tuple[Target, ...]:
    """Where outputs are to go: the last tensors of a request name it, and bring nothing. Raises InvalidArgument where
    one of them is not the last."""
    targets = tuple(
        Target(spec.name.removeprefix(TARGET), spec.resident, spec.nbytes) for spec in layout.specs if _is_target(spec)
    )
    if targets and not all(_is_target(spec) for spec in layout.specs[-len(targets) :]):
        raise InvalidArgument("places for outputs stand among the inputs of a request; name them after all inputs")
    return targets


def _is_target(spec: TensorSpec) -> bool:
    return spec.referred and place_in(spec.resident) is not None


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
