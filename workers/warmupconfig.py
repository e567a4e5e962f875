"""What a model runs on before it serves, as its `config.pbtxt` says under `model_warmup`, in Triton's words.

Whoever is asked first should not pay for what a first run costs: compilation, allocation, the choice of kernels. So
each sample runs while the model is loaded. This module runs nothing: `workers/warming.py` does. Read that next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from workers.fieldreader import FieldReader
    from workers.pbtxt import Message

SAMPLES_MAX: Final = 64
RUNS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """One input of a sample, `dims` without the batch's; `file` lies in the model's folder `warmup`, and without one
    the values are zeros, or `random`."""

    name: str
    dtype: str
    dims: tuple[int, ...]
    random: bool
    file: str


@dataclass(frozen=True, slots=True)
class Warmup:
    """One sample: with a `batch_size` of 0 for a model that takes no batches. It runs `count` times."""

    name: str
    batch_size: int
    inputs: tuple[WarmupInput, ...]
    count: int


def read_warmups(read: FieldReader, root: Message, rows_max: int, dtypes: tuple[str, ...]) -> tuple[Warmup, ...]:
    """Reads `model_warmup` of a model of `max_batch_size` `rows_max`. Raises ModelBroken with file and line."""
    found = []
    for message in read.messages(root, "model_warmup"):
        name = read.text(message, "name", "sample")
        batch_size, count = read.number(message, "batch_size", 0), read.number(message, "count", 0) or 1
        if not 0 <= batch_size <= rows_max or not 1 <= count <= RUNS_MAX:
            raise read.error(
                f"warm-up {name!r} has batch_size {batch_size} and count {count};"
                f" give up to the max_batch_size of {rows_max}, and up to {RUNS_MAX} runs",
                message.line,
            )
        inputs = tuple(_input(read, entry, dtypes) for entry in read.messages(message, "inputs"))
        found.append(Warmup(name, batch_size or min(1, rows_max), inputs, count))
    if len(found) > SAMPLES_MAX:
        raise read.error(f"model_warmup stands there {len(found)} times; at most {SAMPLES_MAX} samples run", root.line)
    return tuple(found)


def _input(read: FieldReader, entry: Message, dtypes: tuple[str, ...]) -> WarmupInput:
    name, values = read.text(entry, "key"), read.messages(entry, "value")
    if not name or len(values) != 1:
        raise read.error("an input of a warm-up needs key and value { ... }", entry.line)
    value = values[0]
    written = read.scalar(value, "data_type", "", ("name",))
    dtype = "BYTES" if written == "TYPE_STRING" else written.removeprefix("TYPE_")
    dims, file = read.numbers(value, "dims"), read.text(value, "input_data_file")
    if dtype not in dtypes or any(dim < 0 for dim in dims) or "/" in file or file.startswith("."):
        raise read.error(
            f"input {name!r} of a warm-up needs a data_type, dims that are sizes, and zero_data, random_data"
            " or the name of a file in the model's folder warmup",
            entry.line,
        )
    return WarmupInput(name, dtype, dims, read.flag(value, "random_data"), file)
