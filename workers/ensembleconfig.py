"""An ensemble as its `config.pbtxt` says it, in Triton's words: models that run one after the other on one request.

It is a chain: a step reads what came with the request and what earlier steps gave, so the order in the file is that of
the run. `check_order` looks at one configuration, `check_steps` at those of its steps too. Nothing is run here:
`workers/backends/ensemble.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from fabric.errors import ModelBroken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from workers.fieldreader import FieldReader
    from workers.modelconfig import ModelConfig, TensorDecl
    from workers.pbtxt import Message

STEPS_MAX: Final = 16


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble. `inputs` and `outputs` are pairs: the model's name of a tensor, and the ensemble's."""

    model: str
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]


def read_steps(read: FieldReader, root: Message) -> tuple[EnsembleStep, ...]:
    """Reads `ensemble_scheduling`; empty where it does not stand. Raises ModelBroken with file and line."""
    found = read.messages(root, "ensemble_scheduling")
    if not found:
        return ()
    steps = read.messages(found[0], "step")
    if not 1 <= len(steps) <= STEPS_MAX:
        raise read.error(f"an ensemble has {len(steps)} steps; give 1 to {STEPS_MAX}", found[0].line)
    return tuple(_step(read, message) for message in steps)


def _step(read: FieldReader, message: Message) -> EnsembleStep:
    model = read.text(message, "model_name")
    if not model:
        raise read.error("a step of an ensemble has no model_name; give one", message.line)
    if read.number(message, "model_version", -1) != -1:
        told = f"step {model!r} asks for one version; the newest of a model is served, so leave model_version out"
        raise read.error(told, message.line)
    inputs, outputs = _map(read, message, "input_map"), _map(read, message, "output_map")
    if not inputs or not outputs:
        raise read.error(f"step {model!r} needs an input_map and an output_map", message.line)
    return EnsembleStep(model, inputs, outputs)


def _map(read: FieldReader, message: Message, name: str) -> tuple[tuple[str, str], ...]:
    pairs: dict[str, str] = {}
    for entry in read.messages(message, name):
        key, value = read.text(entry, "key"), read.text(entry, "value")
        if not key or not value or key in pairs:
            raise read.error(f"an entry of {name} has no key or value, or a key that another has", entry.line)
        pairs[key] = value
    return tuple(pairs.items())


def check_order(read: FieldReader, config: ModelConfig, line: int) -> None:
    """Raises ModelBroken where a step reads what no earlier one gives, a tensor is given twice, or an output never."""
    known = {decl.name for decl in config.inputs}
    used: set[str] = set()
    for step in config.steps:
        if step.model == config.name:
            raise read.error(f"ensemble {config.name!r} is a step of its own; name another model", line)
        for _, tensor in step.inputs:
            if tensor not in known:
                told = f"step {step.model!r} reads {tensor!r}, which neither the request nor an earlier step gives"
                raise read.error(f"{told}; steps run in the order of the file", line)
            used.add(tensor)
        for _, tensor in step.outputs:
            if tensor in known:
                raise read.error(f"step {step.model!r} gives {tensor!r}, which is there already; rename one", line)
            known.add(tensor)
    inputs, outputs = {decl.name for decl in config.inputs}, {decl.name for decl in config.outputs}
    for name in sorted(inputs - used):
        raise read.error(f"no step reads input {name!r} of the ensemble; map it, or leave it out", line)
    for name in sorted(outputs - (known - inputs)):
        raise read.error(f"no step gives output {name!r} of the ensemble; map it", line)


def check_steps(config: ModelConfig, others: Mapping[str, ModelConfig]) -> None:
    """Raises ModelBroken where an ensemble does not fit the models that are its steps, as they are loaded: names,
    datatypes, dims, and that a request may run twice only where it may in each step."""
    tensors = {decl.name: decl for decl in config.inputs}
    for step in config.steps:
        model = others.get(step.model)
        if model is None:
            raise _unfit(config, f"its step {step.model!r} is not loaded here; load that first")
        if model.steps:
            raise _unfit(config, f"its step {step.model!r} is an ensemble too; name that one's steps here")
        if model.decoupled:
            raise _unfit(config, f"its step {step.model!r} is decoupled; a step gives one answer")
        if config.idempotent and not model.idempotent:
            raise _unfit(config, f"it is idempotent and its step {step.model!r} is not; correct one of them")
        inputs = {decl.name: decl for decl in model.inputs}
        outputs = {decl.name: decl for decl in model.outputs}
        missing = inputs.keys() - {name for name, _ in step.inputs}
        if missing:
            raise _unfit(config, f"step {step.model!r} needs {', '.join(sorted(missing))}; map each input")
        for name, tensor in step.inputs:
            _check_fits(config, step.model, inputs.get(name), name, tensors[tensor])
        for name, tensor in step.outputs:
            if name not in outputs:
                raise _unfit(config, f"step {step.model!r} has no output {name!r}; it has {', '.join(outputs)}")
            tensors[tensor] = outputs[name]
    for decl in config.outputs:
        given = tensors[decl.name]
        if given.dtype != decl.dtype or not _may_fit(decl.dims, given.dims):
            declared, found = f"{decl.dtype} {list(decl.dims)}", f"{given.dtype} {list(given.dims)}"
            raise _unfit(config, f"it declares output {decl.name!r} as {declared}, and its step gives {found}")


def _check_fits(config: ModelConfig, step: str, wanted: TensorDecl | None, name: str, given: TensorDecl) -> None:
    if wanted is None:
        raise _unfit(config, f"step {step!r} has no input {name!r}; look at its config.pbtxt")
    if wanted.dtype != given.dtype or not _may_fit(wanted.dims, given.dims):
        takes, gets = f"{wanted.dtype} {list(wanted.dims)}", f"{given.dtype} {list(given.dims)}"
        raise _unfit(config, f"input {name!r} of step {step!r} takes {takes} and gets {gets}")


def _may_fit(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether there is a shape that both declare."""
    return len(one) == len(other) and all(a == b or -1 in {a, b} for a, b in zip(one, other, strict=True))


def _unfit(config: ModelConfig, why: str) -> ModelBroken:
    return ModelBroken(f"ensemble {config.name!r} cannot be served: {why}")
