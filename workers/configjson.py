"""A model's configuration as JSON, both ways: as a client gives it with a load, and as a client is told it.

The form is that of protocol buffers' own JSON, which is what Triton's clients send and expect. What comes in becomes
the same tree that `config.pbtxt` is read into, so that there is one reading of it. This module decides nothing about
what a field means: `workers/modelconfig.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

from fabric.errors import ModelBroken
from workers.pbtxt import DEPTH_MAX, Field, Message, Scalar

if TYPE_CHECKING:
    from workers.batchconfig import QueuePolicy
    from workers.ensembleconfig import EnsembleStep
    from workers.modelconfig import ModelConfig
    from workers.warmupconfig import Warmup

_NAMES: Final = frozenset({"data_type", "format", "kind", "timeout_action", "model_priority"})
"""Fields whose values are words of an enumeration, which JSON can write as strings only."""
_TEXTS: Final = frozenset(
    {
        "string_value",
        "input_data_file",
        "name",
        "key",
        "backend",
        "platform",
        "default_model_filename",
        "model_name",
        "value",
    }
)
"""Fields whose values are texts, also where they look like numbers."""
_MAPS: Final = frozenset(
    {"parameters", "priority_queue_policy", "cc_model_filenames", "metric_tags", "inputs", "input_map", "output_map"}
)
"""Fields that are maps: an object of JSON, and a list of key and value in the text form."""
_HUMP: Final = re.compile(r"(?<=[a-z0-9])([A-Z])")
_WHOLE: Final = re.compile(r"[-+]?\d+")


def tree_of_json(text: str, source: str) -> Message:
    """Reads a whole configuration. `source` names it in errors. Raises ModelBroken where it cannot be read."""
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelBroken(f"{source} is no JSON ({error}); give one object, as Triton's model configuration") from None
    if not isinstance(facts, dict):
        raise ModelBroken(f"{source} is no JSON object; give one, as Triton's model configuration")
    return _message(facts, source, 0)


def _message(facts: dict[str, Any], source: str, depth: int) -> Message:
    if depth > DEPTH_MAX:
        raise ModelBroken(f"{source}: objects are nested over {DEPTH_MAX} deep; flatten them")
    fields: list[Field] = []
    for written, value in facts.items():
        name = _HUMP.sub(lambda hump: f"_{hump.group(1).lower()}", written)  # protobuf writes maxBatchSize, too
        if name in _MAPS and isinstance(value, dict):
            entries = [{"key": key, "value": each} for key, each in value.items()]
            fields += [Field(name, _message(entry, source, depth + 1), 1) for entry in entries]
            continue
        for each in value if isinstance(value, list) else [value]:
            if each is None:
                continue
            if isinstance(each, dict):
                fields.append(Field(name, _message(each, source, depth + 1), 1))
            else:
                fields.append(Field(name, _scalar(name, each, source), 1))
    return Message(tuple(fields), 1)


def _scalar(name: str, value: object, source: str) -> Scalar:
    if isinstance(value, bool):
        return Scalar(str(value).lower(), "name", 1)
    if isinstance(value, (int, float)):
        return Scalar(str(value), "number", 1)
    if not isinstance(value, str):
        raise ModelBroken(f"{source}: {name!r} holds a list in a list; give one value, or a list of values")
    if name in _NAMES:
        return Scalar(value, "name", 1)
    # 64-bit numbers are strings in protobuf's JSON.
    numeric = name not in _TEXTS and _WHOLE.fullmatch(value) is not None
    return Scalar(value, "number" if numeric else "string", 1)


def json_of_config(config: ModelConfig) -> str:
    """A configuration as Triton's `ModelConfig` message in JSON."""
    batched = config.max_batch_size > 0
    facts: dict[str, Any] = {
        "name": config.name,
        "platform": {"onnxruntime": "onnxruntime_onnx", "ensemble": "ensemble"}.get(config.backend, ""),
        "backend": "" if config.steps else config.backend,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": config.max_batch_size,
        "input": [_tensor(decl.name, decl.dtype, decl.dims, batched=batched) for decl in config.inputs],
        "output": [_tensor(decl.name, decl.dtype, decl.dims, batched=batched) for decl in config.outputs],
        "parameters": {key: {"string_value": value} for key, value in config.parameters},
    }
    if config.instances.count:  # without it every executor has one, and a load with this configuration means the same
        own = config.instances
        group: dict[str, Any] = {"name": f"{config.name}_0", "kind": own.kind, "count": own.count}
        facts["instance_group"] = [group | ({"gpus": list(own.gpus)} if own.gpus else {})]
    if config.cuda_graphs:
        facts["optimization"] = {"cuda": {"graphs": True}}
    if config.decoupled:
        facts["model_transaction_policy"] = {"decoupled": True}
    if config.steps:
        facts["ensemble_scheduling"] = {"step": [_step(step) for step in config.steps]}
    if config.warmups:
        facts["model_warmup"] = [_warmup(sample) for sample in config.warmups]
    if config.batching is not None:
        facts["dynamic_batching"] = {
            "preferred_batch_size": list(config.batching.preferred),
            "max_queue_delay_microseconds": config.batching.queue_delay_max_us,
            "preserve_ordering": config.batching.ordered,
            "priority_levels": config.batching.levels,
            "default_priority_level": config.batching.default_level,
            "default_queue_policy": _policy(config.batching.policy),
            "priority_queue_policy": {str(level): _policy(policy) for level, policy in config.batching.policies},
        }
    return json.dumps(facts)


def _step(step: EnsembleStep) -> dict[str, Any]:
    maps = {"input_map": dict(step.inputs), "output_map": dict(step.outputs)}
    return {"model_name": step.model, "model_version": -1, **maps}


def _warmup(sample: Warmup) -> dict[str, Any]:
    inputs: dict[str, Any] = {}
    for given in sample.inputs:
        inputs[given.name] = value = _tensor("", given.dtype, given.dims, batched=False)
        del value["name"]
        if given.file:
            value["input_data_file"] = given.file
        else:
            value["random_data" if given.random else "zero_data"] = True
    return {"name": sample.name, "batch_size": sample.batch_size, "count": sample.count, "inputs": inputs}


def _policy(policy: QueuePolicy) -> dict[str, Any]:
    return {
        "timeout_action": "DELAY" if policy.delays else "REJECT",
        "default_timeout_microseconds": policy.timeout_us,
        "allow_timeout_override": policy.allow_override,
        "max_queue_size": policy.size_max,
    }


def _tensor(name: str, dtype: str, dims: tuple[int, ...], *, batched: bool) -> dict[str, Any]:
    written = "TYPE_STRING" if dtype == "BYTES" else f"TYPE_{dtype}"
    return {"name": name, "data_type": written, "dims": list(dims[1:] if batched else dims)}
