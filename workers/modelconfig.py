"""What a model's `config.pbtxt` says, as a value; fields we do not use are warned about, never fatal.

The field names and their meaning are Triton's, so that a repository written for it is read here too. This module reads
no file and knows no backend's library, and dtypes are names only, because the node that reads it has no numpy. Read
`workers/repository.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from fabric.errors import ModelBroken
from workers.batchconfig import Batching, read_batching
from workers.ensembleconfig import EnsembleStep, check_order, read_steps
from workers.fieldreader import FieldReader
from workers.pbtxt import Field, Message, Scalar, parse_pbtxt
from workers.warmupconfig import Warmup, read_warmups

DTYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip
"""The datatypes of the Open Inference Protocol; `fabric/dtypes.py` has the same, with numpy."""

BACKENDS = ("python", "onnxruntime", "torch", "tensorrt")
ENSEMBLE = "ensemble"
"""The platform of a model that is a chain of others. It is no backend of its own in Triton's words, and one here."""
_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime", "pytorch_libtorch": "torch", "tensorrt_plan": "tensorrt",
}  # fmt: skip
_USED = frozenset({
    "name", "backend", "platform", "max_batch_size", "input", "output", "parameters", "instance_group",
    "dynamic_batching", "model_warmup", "ensemble_scheduling", "model_transaction_policy", "optimization",
})  # fmt: skip
_USED_OF = {
    "input": ("name", "data_type", "dims"), "output": ("name", "data_type", "dims"),
    "instance_group": ("name", "count", "kind", "gpus"),
}  # fmt: skip
"""What is read of messages within."""
_NO_WISH = frozenset({"", "0", "false", "FORMAT_NONE"})
"""What fields hold that Triton's own JSON writes out and nobody asked for."""
PARAMETERS = (
    "idempotent", "max_queue_size", "execution_timeout_ms", "inputs_private", "refuse_nan", "intra_op_threads",
    "requires", "profiles", "memory_bytes",
    "device", "gpu_memory_bytes_max", "min_shapes", "opt_shapes", "max_shapes", "card_memory",
)  # fmt: skip
"""The parameters with a meaning of ours, as `docs/models.md` lists them."""
KINDS = ("KIND_AUTO", "KIND_CPU", "KIND_GPU", "KIND_MODEL")
_CLOSE = 0.75
"""How alike two keys are (difflib) when one may be the other misspelt: a letter or two of ten."""
QUEUE_SIZE_DEFAULT = 1024
"""Requests that may wait for one model. At 1 ms each that is a second of work: longer queues only add timeouts."""


@dataclass(frozen=True, slots=True)
class TensorDecl:
    """One declared input or output; `dims` are as sent (a batch dimension included), -1 where any size goes."""

    name: str
    dtype: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Instances:
    """How many executors should have the model, 0 for all that it fits, of which kind they are, and on which cards, by
    number; none for any card."""

    count: int = 0
    kind: str = "KIND_AUTO"
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model as configured. `path` is the folder of the version served, `parameters` what the file gives by key.

    A python model gets this value; `parameter` reads one of its own keys.
    """

    name: str
    version: str
    backend: str
    path: str
    max_batch_size: int
    inputs: tuple[TensorDecl, ...]
    outputs: tuple[TensorDecl, ...]
    parameters: tuple[tuple[str, str], ...]
    instances: Instances
    warmups: tuple[Warmup, ...]
    batching: Batching | None
    warnings: tuple[str, ...]
    steps: tuple[EnsembleStep, ...] = ()
    """What an ensemble runs, in order; none for any other model."""
    decoupled: bool = False
    """It gives none, one or many answers to a request, in a stream."""
    cuda_graphs: bool = False
    """Shapes that come again are recorded as CUDA graphs, where backend and device can."""

    def parameter(self, key: str, default: str = "") -> str:
        """The value of a parameter as written, or `default`."""
        return next((value for name, value in self.parameters if name == key), default)

    def flag(self, key: str) -> bool:
        """Whether a parameter says true; absent is false. Raises ModelBroken for a word that is neither."""
        value = self.parameter(key, "false").lower()
        if value not in {"true", "false"}:
            raise ModelBroken(f"model {self.name!r}: parameter {key!r} is {value!r}; write true or false")
        return value == "true"

    def whole_number(self, key: str, default: int, at_least: int = 1) -> int:
        """A parameter that is a whole number, or `default`. Raises ModelBroken when it is not one."""
        value = self.parameter(key)
        if not value:
            return default
        if not value.isascii() or not value.isdigit() or int(value) < at_least:
            raise ModelBroken(
                f"model {self.name!r}: parameter {key!r} is {value!r}; give a whole number of at least {at_least}"
            )
        return int(value)

    @property
    def idempotent(self) -> bool:
        """Whether a request may run twice without harm."""
        return self.flag("idempotent")

    @property
    def queue_size_max(self) -> int:
        """How many requests may wait for this model on one node."""
        return self.whole_number("max_queue_size", QUEUE_SIZE_DEFAULT)

    @property
    def execution_timeout_s(self) -> float | None:
        """How long one run may take before its executor counts as hung; None where the deadline decides."""
        timeout_ms = self.whole_number("execution_timeout_ms", 0)
        return timeout_ms / 1000 if timeout_ms else None


def read_config(text: str, source: str, folder_name: str, version: str, path: str) -> ModelConfig:
    """Reads a `config.pbtxt`. `source` names the file in errors, `folder_name` is the model's folder, `path` that of
    the version served. Raises ModelBroken for what cannot be served, with file and line."""
    return config_of(parse_pbtxt(text, source), source, folder_name, version, path)


def config_of(root: Message, source: str, folder_name: str, version: str, path: str) -> ModelConfig:
    """The same of a tree that was read already, from text or JSON."""
    read = FieldReader(source)
    name = read.text(root, "name", folder_name)
    if name != folder_name:
        raise read.error(f"the model is named {name!r} but its folder {folder_name!r}; make them equal", 1)
    backend = read.text(root, "backend") or _PLATFORMS.get(read.text(root, "platform"), "")
    steps = read_steps(read, root)
    if steps or read.text(root, "platform") == ENSEMBLE:
        _check_ensemble(read, root, backend, steps)
        backend = ENSEMBLE
    elif backend not in BACKENDS:
        raise read.error(f"backend {backend!r} is unknown; give one of {', '.join(BACKENDS)}", 1)
    batch = read.number(root, "max_batch_size", 0)
    if batch < 0:
        raise read.error(f"max_batch_size is {batch}; give 0 (no batching) or more", 1)
    config = ModelConfig(
        name=name,
        version=version,
        backend=backend,
        path=path,
        max_batch_size=batch,
        inputs=_tensors(read, root, "input", batched=batch > 0),
        outputs=_tensors(read, root, "output", batched=batch > 0),
        parameters=_parameters(read, root),
        instances=_instances(read, root),
        warmups=read_warmups(read, root, batch, DTYPES),
        batching=read_batching(read, root, batch),
        warnings=(*_unused_fields(root, source, batch), *_misspelt(read, root)),
        steps=steps,
        decoupled=_decoupled(read, root, backend),
        cuda_graphs=_cuda_graphs(read, root),
    )
    if steps:
        check_order(read, config, root.line)
    # Read now, so that a wrong word is told when the node starts and not with the first request.
    _ = (config.idempotent, config.flag("refuse_nan"), config.flag("card_memory"), config.queue_size_max)
    _ = config.execution_timeout_s
    if config.parameter("inputs_private", "auto") not in {"auto", "all", "none"}:
        raise read.error("parameter 'inputs_private' must be auto, all or none", 1)
    return config


def _decoupled(read: FieldReader, root: Message, backend: str) -> bool:
    policies = read.messages(root, "model_transaction_policy")
    if not policies or not read.flag(policies[0], "decoupled"):
        return False
    if backend != "python" or read.messages(root, "dynamic_batching") or read.messages(root, "model_warmup"):
        raise read.error("only a python model is decoupled, without dynamic_batching and model_warmup", 1)
    return True


def _cuda_graphs(read: FieldReader, root: Message) -> bool:
    cuda = [each for part in read.messages(root, "optimization") for each in read.messages(part, "cuda")]
    return any(read.flag(each, "graphs") for each in cuda)


def _check_ensemble(read: FieldReader, root: Message, backend: str, steps: tuple[EnsembleStep, ...]) -> None:
    if backend or read.text(root, "platform") != ENSEMBLE or not steps:
        raise read.error('an ensemble needs platform "ensemble" and ensemble_scheduling with steps, and no backend', 1)
    for field in ("dynamic_batching", "model_warmup"):
        if read.messages(root, field):
            raise read.error(f"an ensemble has no {field} of its own; give it to its steps, or leave it out", 1)


def _instances(read: FieldReader, root: Message) -> Instances:
    groups = read.messages(root, "instance_group")
    counts = [read.number(group, "count", 1) for group in groups]
    kinds = {read.word(group, "kind", "KIND_AUTO", KINDS) for group in groups}
    if any(count < 1 for count in counts):
        raise read.error(f"instance_group has counts {counts}; give 1 or more", root.line)
    lists = [read.numbers(group, "gpus") for group in groups]
    gpus = sorted({number for numbers in lists for number in numbers})
    if gpus and (gpus[0] < 0 or "KIND_CPU" in kinds):
        raise read.error(f"instance_group names gpus {gpus}; give numbers from 0, and no KIND_CPU", root.line)
    anywhere = not all(lists)  # one group that names none may be on any
    return Instances(sum(counts), kinds.pop() if len(kinds) == 1 else "KIND_AUTO", () if anywhere else tuple(gpus))


def _tensors(read: FieldReader, root: Message, what: str, *, batched: bool) -> tuple[TensorDecl, ...]:
    found: list[TensorDecl] = []
    for message in read.messages(root, what):
        name = read.text(message, "name")
        if not name or name in {decl.name for decl in found}:
            raise read.error(f"an {what} has no name, or one that another has", message.line)
        written = read.scalar(message, "data_type", "", ("name",))
        dtype = {"TYPE_STRING": "BYTES"}.get(written, written.removeprefix("TYPE_"))
        if dtype not in DTYPES or not written.startswith("TYPE_"):
            types = ", ".join("TYPE_STRING" if known == "BYTES" else f"TYPE_{known}" for known in DTYPES)
            raise read.error(f"{what} {name!r} has data_type {written!r}; give one of {types}", message.line)
        dims = read.numbers(message, "dims")
        if any(dim < 1 and dim != -1 for dim in dims):
            raise read.error(f"{what} {name!r} has dims {list(dims)}; each is positive, or -1 for any", message.line)
        found.append(TensorDecl(name, dtype, (-1, *dims) if batched else dims))
    if not found:
        raise read.error(f"the model declares no {what}; name each with data_type and dims", root.line)
    return tuple(found)


def _parameters(read: FieldReader, root: Message) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for message in read.messages(root, "parameters"):
        values = read.messages(message, "value")
        if len(values) != 1:
            raise read.error("a parameter needs key and value { string_value: ... }", message.line)
        found.append((read.text(message, "key"), read.text(values[0], "string_value")))
    return tuple(found)


def _unused_fields(root: Message, source: str, batch: int) -> list[str]:
    read = FieldReader(source)
    found = [
        ("", field)
        for field in root.fields
        if field.name not in _USED
        or (field.name == "dynamic_batching" and not batch)
        or (field.name == "optimization" and not _cuda_graphs(read, root))
    ]
    for what, used in _USED_OF.items():
        for message in read.messages(root, what):
            name = read.text(message, "name")
            whose = f" of {what} {name!r}" if name else f" of {what}"
            found += [(whose, field) for field in message.fields if field.name not in used]
    return [
        f"{source}:{field.line}: field {field.name!r}{whose} is not used here and changes nothing"
        for whose, field in found
        if _is_wish(field)
    ]


def _is_wish(field: Field) -> bool:
    """Whether it asks for anything but what is done without it: the newest version is served anyhow."""
    if isinstance(field.value, Scalar):
        return field.value.text not in _NO_WISH and (field.name, field.value.text) != ("num_versions", "1")
    only_newest = {each.name for each in field.value.fields} == {"latest"} or field.name == "latest"
    return not only_newest or any(_is_wish(each) for each in field.value.fields)


def _misspelt(read: FieldReader, root: Message) -> list[str]:
    """A python model may have keys of its own, so a key that looks like one of ours is warned about, never refused."""
    warnings = []
    for message in read.messages(root, "parameters"):
        key = read.text(message, "key")
        meant = get_close_matches(key.lower().replace("-", "_"), PARAMETERS, n=1, cutoff=_CLOSE)
        if meant and key not in PARAMETERS:
            warnings.append(
                f"{read.source}:{message.line}: parameter {key!r} is not one of ours; did you mean {meant[0]!r}?"
            )
    return warnings
