"""Runs an ensemble: its steps one after the other in this executor, each on what the ones before it gave.

The steps are the models that the executor has loaded, as they are at the time, so nothing is loaded twice and nothing
leaves the process in between; what a step gives on the card stays there for the next. Of an ensemble that is cut into
legs it runs one (`workers/legrun.py`). What each step took is kept for the node, which counts it beside the step's own
requests. It decides nothing about what fits what: `workers/ensembleconfig.py` did. Read `workers/execution.py` next.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.errors import InvalidArgument, ModelFailed, OverspillError, UnknownModel
from fabric.memory.lease import tensors
from workers.backends.base import Inputs, fits
from workers.backends.on_card import CardArray
from workers.batch_run import SCRATCH_BYTES_MAX
from workers.card_rooms import StepTargets
from workers.handover import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.backends.base import Outputs
    from workers.card_rooms import CardRooms
    from workers.ensembleconfig import EnsembleStep
    from workers.execution import LoadedModel
    from workers.modelconfig import ModelConfig

    Array = np.ndarray[Any, Any] | CardArray
    Arrays = dict[str, Array]


class Ensemble:  # mutable: keeps memory for what goes between its steps, and what the last run took
    """The steps of one ensemble. `find` gives the model of a name that this executor has loaded, or None, and `rooms`
    is its card's memory, if it has one."""

    __slots__ = ("_before", "_config", "_find", "_ran", "_rooms", "_scratch")

    def __init__(
        self, config: ModelConfig, find: Callable[[str], LoadedModel | None], rooms: CardRooms | None = None
    ) -> None:
        self._config = config
        self._find = find
        self._rooms = rooms
        self._scratch = [bytearray() for _ in config.steps]
        self._ran: tuple[Loaded, ...] = ()
        self._before: tuple[int, Arrays] = (0, {})

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs all steps, or those that are left after `goes_on_from`. Raises what a step raises."""
        (first, before), self._before = self._before, (0, {})
        given = self.run_steps(first, len(self._config.steps), inputs, before)
        for decl in self._config.outputs:
            value = given[decl.name]
            if isinstance(value, CardArray):
                assert self._rooms is not None, "what lies on a card was given by an executor that has one"
                self._rooms.fetch(value, outputs.allocate(decl.name, decl.dtype, value.shape))
            else:
                outputs[decl.name] = value

    def goes_on_from(self, first: int, before: Arrays) -> None:
        """The next run begins at this step, with what earlier ones gave elsewhere."""
        self._before = (first, before)

    def run_steps(
        self, first: int, upto: int, inputs: Inputs, before: Arrays, leave_on_card: frozenset[str] = frozenset()
    ) -> Arrays:
        """Runs the steps from `first` to before `upto`; gives all tensors that there are then, by name. They are good
        until the next run. Those that later steps read on the card, and those named to be left there, lie there if
        their step can write there. Raises what a step raises."""
        self._ran = ()
        given: Arrays = {**inputs, **before}
        residents = {name: inputs.resident(name) for name in inputs}
        for number in range(first, upto):
            self._run(number, upto, given, residents, leave_on_card)
        return given

    def take_ran(self) -> tuple[Loaded, ...]:
        """The steps of the last run, once: microseconds in all, before and after the model's own code, and rows; or why
        it failed."""
        ran, self._ran = self._ran, ()
        return ran

    def warm_up(self) -> bool:
        """Nothing: its steps were warmed up by themselves."""
        return False

    def _run(
        self, number: int, upto: int, given: Arrays, residents: dict[str, bytes], leave_on_card: frozenset[str]
    ) -> None:
        step = self._config.steps[number]
        model = self._find(step.model)
        if model is None:
            raise UnknownModel(
                f"step {step.model!r} of ensemble {self._config.name!r} is not loaded on this executor; load it again"
            )
        arrays: dict[str, np.ndarray[Any, Any]] = {}
        on_card: dict[str, CardArray] = {}
        kept: dict[str, bytes] = {}
        rows = 1
        for name, tensor in step.inputs:
            array = self._checked(model, name, tensor, given[tensor])
            rows = array.shape[0] if model.config.max_batch_size else 1
            if isinstance(array, CardArray) and model.reads_cards:
                on_card[name] = array
            else:
                arrays[name] = self._on_host(array)
            if residents.get(tensor):
                kept[name] = residents[tensor]
        memory = memoryview(self._scratch[number])
        targets = self._targets(model, step, self._config.steps[number + 1 : upto], leave_on_card)
        try:
            run = model.run_on(Inputs(arrays, kept or None, on_card or None), memory, monotonic_ns(), targets)
            if targets is not None and targets.taken and self._rooms is not None:
                self._rooms.settle()  # whoever reads it may use another stream
        except RuntimeError as error:
            raise ModelFailed(f"step {step.model!r} of ensemble {self._config.name!r}: {error}") from None
        except OverspillError as error:
            self._ran += (Loaded(step.model, (), str(error)),)
            raise
        self._ran += (Loaded(step.model, (run.compute_us, run.input_us, run.output_us, rows)),)
        if run.aside is not None:
            memory = memoryview(run.aside)
            if len(run.aside) <= SCRATCH_BYTES_MAX:
                self._scratch[number] = bytearray(len(run.aside))
        found: Arrays = dict(zip((spec.name for spec in run.layout.specs), tensors(memory, run.layout), strict=True))
        found.update(targets.taken if targets is not None else {})
        given.update({tensor: found[name] for name, tensor in step.outputs})

    def _targets(
        self, model: LoadedModel, step: EnsembleStep, later: tuple[EnsembleStep, ...], leave_on_card: frozenset[str]
    ) -> StepTargets | None:
        """Where a step writes what is read on the card; None where nothing is, or it cannot."""
        if self._rooms is None or not model.reads_cards:
            return None
        read_there = set(leave_on_card)
        for each in later:
            reader = self._find(each.model)
            if reader is not None and reader.reads_cards:
                read_there.update(tensor for _, tensor in each.inputs)
        wanted = frozenset(name for name, tensor in step.outputs if tensor in read_there)
        return StepTargets(self._rooms, step.model, wanted) if wanted else None

    def _on_host(self, array: Array) -> np.ndarray[Any, Any]:
        if not isinstance(array, CardArray):
            return array
        assert self._rooms is not None, "what lies on a card was given by an executor that has one"
        return self._rooms.fetched(array)

    def _checked(self, model: LoadedModel, name: str, tensor: str, array: Array) -> Array:
        """An input of a step, as the step's own configuration wants it. Raises InvalidArgument where it is the
        caller's tensor that is wrong, ModelFailed where it is a step's."""
        config = model.config
        decl = next(decl for decl in config.inputs if decl.name == name)
        rows_max = config.max_batch_size
        callers = any(own.name == tensor for own in self._config.inputs)
        told = f"step {config.name!r} of ensemble {self._config.name!r}"
        if not fits(decl.dims, array.shape) or (rows_max and array.shape[0] > rows_max):
            most = f", of at most {rows_max} rows" if rows_max else ""
            told = f"{told} takes {name!r} as {list(decl.dims)}{most}, and {tensor!r} is {list(array.shape)}"
            raise _wrong(told, callers=callers)
        if callers and config.parameter("inputs_private") == "all" and isinstance(array, np.ndarray):
            array = array.copy()
            array.flags.writeable = False
        if array.dtype.kind == "f" and config.flag("refuse_nan") and not np.isfinite(self._on_host(array)).all():
            raise _wrong(f"{told} refuses NaN and infinity, and {tensor!r} holds some", callers=callers)
        return array


def _wrong(told: str, *, callers: bool) -> OverspillError:
    if callers:
        return InvalidArgument(f"{told}; correct the input")
    return ModelFailed(f"{told}; correct the step that gives it")
