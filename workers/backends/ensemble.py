"""Runs an ensemble: its steps one after the other in this executor, each on what the ones before it gave.

The steps are the models that the executor has loaded, as they are at the time, so nothing is loaded twice and nothing
leaves the process in between. What each step took is kept for the node, which counts it beside the step's own requests.
It decides nothing about what fits what: `workers/ensembleconfig.py` did. Read `workers/execution.py` next.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from fabric.errors import InvalidArgument, ModelFailed, OverspillError, UnknownModel
from fabric.memory.lease import tensors
from workers.backends.base import Inputs, fits
from workers.batch_run import SCRATCH_BYTES_MAX
from workers.handover import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable

    from workers.backends.base import Outputs
    from workers.ensembleconfig import EnsembleStep
    from workers.execution import LoadedModel
    from workers.modelconfig import ModelConfig

    Arrays = dict[str, np.ndarray[Any, Any]]


class Ensemble:  # mutable: keeps memory for what goes between its steps, and what the last run took
    """The steps of one ensemble. `find` gives the model of a name that this executor has loaded, or None."""

    __slots__ = ("_config", "_find", "_ran", "_scratch")

    def __init__(self, config: ModelConfig, find: Callable[[str], LoadedModel | None]) -> None:
        self._config = config
        self._find = find
        self._scratch = [bytearray() for _ in config.steps]
        self._ran: tuple[Loaded, ...] = ()

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Runs all steps. Raises what a step raises."""
        self._ran = ()
        given: Arrays = dict(inputs)
        residents = {name: inputs.resident(name) for name in inputs}
        for number, step in enumerate(self._config.steps):
            self._run(number, step, given, residents)
        for decl in self._config.outputs:
            outputs[decl.name] = given[decl.name]

    def take_ran(self) -> tuple[Loaded, ...]:
        """The steps of the last run, once: microseconds in all, before and after the model's own code, and rows; or why
        it failed."""
        ran, self._ran = self._ran, ()
        return ran

    def warm_up(self) -> bool:
        """Nothing: its steps were warmed up by themselves."""
        return False

    def _run(self, number: int, step: EnsembleStep, given: Arrays, residents: dict[str, bytes]) -> None:
        model = self._find(step.model)
        if model is None:
            raise UnknownModel(
                f"step {step.model!r} of ensemble {self._config.name!r} is not loaded on this executor; load it again"
            )
        arrays: Arrays = {}
        kept: dict[str, bytes] = {}
        for name, tensor in step.inputs:
            arrays[name] = self._checked(model, name, tensor, given[tensor])
            if residents.get(tensor):
                kept[name] = residents[tensor]
        memory = memoryview(self._scratch[number])
        rows = len(next(iter(arrays.values()))) if model.config.max_batch_size else 1
        try:
            run = model.run_on(Inputs(arrays, kept or None), memory, monotonic_ns())
        except OverspillError as error:
            self._ran += (Loaded(step.model, (), str(error)),)
            raise
        self._ran += (Loaded(step.model, (run.compute_us, run.input_us, run.output_us, rows)),)
        if run.aside is not None:
            memory = memoryview(run.aside)
            if len(run.aside) <= SCRATCH_BYTES_MAX:
                self._scratch[number] = bytearray(len(run.aside))
        found = dict(zip((spec.name for spec in run.layout.specs), tensors(memory, run.layout), strict=True))
        given.update({tensor: found[name] for name, tensor in step.outputs})

    def _checked(self, model: LoadedModel, name: str, tensor: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
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
        if callers and config.parameter("inputs_private") == "all":
            array = array.copy()
            array.flags.writeable = False
        if array.dtype.kind == "f" and config.flag("refuse_nan") and not np.isfinite(array).all():
            raise _wrong(f"{told} refuses NaN and infinity, and {tensor!r} holds some", callers=callers)
        return array


def _wrong(told: str, *, callers: bool) -> OverspillError:
    if callers:
        return InvalidArgument(f"{told}; correct the input")
    return ModelFailed(f"{told}; correct the step that gives it")
