"""What a node tells of its models beside requests: their states, their configurations, and Triton's statistics.

These are the values that pass between a node and whoever asks it on its control socket, with the JSON that carries
them. The names and meanings are those of Triton's statistics and repository extensions, so that a front door for its
clients has nothing to translate. This module never asks and never answers. Read `workers/statistics.py` for where the
numbers come from, `fabric/local/control.py` for how they are asked for.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Final

from fabric.errors import OverspillError, ProtocolError, from_wire

MESSAGE_BYTES_MAX: Final = 16 << 20
"""Of one question or answer: 1024 models with statistics of 64 batch sizes each take a third of it."""

READY: Final = "READY"
UNAVAILABLE: Final = "UNAVAILABLE"
LOADING: Final = "LOADING"
UNLOADING: Final = "UNLOADING"


@dataclass(frozen=True, slots=True)
class ModelState:
    """One version of one model of a node's repository. `state` is one of the four words above; `reason` is why it is
    not ready, or why the last attempt to replace it failed, and else empty. `serial` is another one after each load of
    what serves: its configuration may be another one, too."""

    name: str
    version: str
    state: str
    reason: str = ""
    serial: int = 0


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened, and how long all of it took together."""

    count: int = 0
    ns: int = 0


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """What the executions of one batch size took. The counts are of executions."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """One version of one model since it was loaded first on this node.

    `inference_count` counts batch items, `execution_count` runs of the model (a batch is one). The durations count
    requests, and a request of a batch has the whole batch's compute time. `last_inference_ms` is of the Unix epoch, 0
    before the first. `pending` requests wait or are with an executor. `failures` tells the failed ones by reason:
    REJECTED (never queued, or its time in the queue was over), CANCELED, BACKEND (the model or its executor) and OTHER.
    """

    name: str
    version: str
    last_inference_ms: int
    inference_count: int
    execution_count: int
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    batches: tuple[BatchStatistics, ...] = ()
    failures: tuple[tuple[str, int], ...] = ()
    pending: int = 0


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """One executor of a node now. `generation` counts its processes, the standby's too; `pid` is the one at work, 0
    while there is none; `state` is the sentinel's word, `ready` says whether it takes work. `card` is the UUID of its
    GPU, empty on a processor. The process has registered callers' memory with the GPU `registrations` times, and
    `pinned_bytes` of it are now, as of a tenth of a second ago. Of ensembles that are on several executors it has given
    the next ones `passed_card_bytes` in memory of its card and `passed_host_bytes` in the host's; `passed_fallbacks`
    times what could have gone from card to card did not."""

    number: int
    device: str
    generation: int
    state: str
    ready: bool
    card: str = ""
    card_bytes: int = 0
    card_used_bytes: int = 0
    pid: int = 0
    registrations: int = 0
    pinned_bytes: int = 0
    passed_card_bytes: int = 0
    passed_host_bytes: int = 0
    passed_fallbacks: int = 0


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory on a card that a client of the local session `client_id` made: what CUDA's IPC names it by, the card's
    number as nvidia-smi has it, and bytes; or, to close it, the `number` that the node gave for it."""

    client_id: int
    handle: bytes = b""
    card: int = 0
    nbytes: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class TracedRun:
    """What one traced request took on its node, in microseconds, from `arrived_us` of the host's monotonic clock on: it
    waited, its inputs were gathered (on a GPU: copied there), its model ran, its outputs were put where they belong.
    `batch_rows` items ran together, of which `rows` were its own, on `executor` in `generation`."""

    client_id: int
    request_no: int
    arrived_us: int
    queue_us: int
    input_us: int
    infer_us: int
    output_us: int
    rows: int
    batch_rows: int
    executor: int
    generation: int


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked on a control socket. `word` is `index`, `statistics`, `config`, `executors`, `traced`, `load`,
    `unload`, `open_memory` or `close_memory`; `model` names one (all, where it is empty and that makes sense); `config`
    is a whole configuration as Triton's JSON, for `load` alone, which takes the place of the model's `config.pbtxt`;
    with the last two it holds `MemoryFacts`. `open_memory` is answered with a number as `config`."""

    word: str
    model: str = ""
    version: str = ""
    config: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a node answers. Only what was asked for is filled in; `config` is Triton's JSON of one configuration."""

    states: tuple[ModelState, ...] = ()
    statistics: tuple[ModelStatistics, ...] = ()
    config: str = ""
    executors: tuple[ExecutorFacts, ...] = ()
    traced: tuple[TracedRun, ...] = ()


def encode_question(question: Question) -> bytes:
    """The question as one line."""
    return json.dumps(asdict(question)).encode() + b"\n"


def decode_question(line: bytes) -> Question:
    """Reads a question. Raises ProtocolError when it is none."""
    facts = _object(line)
    try:
        return Question(*(_text(facts.get(name, "")) for name in ("word", "model", "version", "config")))
    except TypeError:
        raise ProtocolError("a question on the control socket has a part that is no text; send text") from None


def memory_question(word: str, memory: MemoryFacts) -> Question:
    """The question about memory on a card."""
    return Question(word, config=json.dumps({**asdict(memory), "handle": memory.handle.hex()}))


def decode_memory(question: Question) -> MemoryFacts:
    """What is asked about memory on a card. Raises ProtocolError when it is nothing of the kind."""
    facts = _object(question.config.encode())
    try:
        handle = bytes.fromhex(_text(facts.pop("handle")))
        return MemoryFacts(handle=handle, **{name: int(value) for name, value in facts.items()})
    except (TypeError, KeyError, ValueError):
        raise ProtocolError("a question about memory on a card has a part that is none; send MemoryFacts") from None


def encode_reply(reply: Reply | OverspillError) -> bytes:
    """The answer as one line."""
    if isinstance(reply, OverspillError):
        return json.dumps({"code": reply.code, "fate": int(reply.fate), "error": str(reply)}).encode() + b"\n"
    return json.dumps(asdict(reply)).encode() + b"\n"


def decode_reply(line: bytes) -> Reply:
    """Reads an answer. Raises the node's own error, or ProtocolError when it is none."""
    facts = _object(line)
    try:
        if "error" in facts:
            raise from_wire(int(facts["code"]), int(facts["fate"]), _text(facts["error"]))
        states = tuple(ModelState(**state) for state in facts["states"])
        executors = tuple(ExecutorFacts(**each) for each in facts.get("executors", ()))
        statistics = tuple(_statistics(each) for each in facts["statistics"])
        traced = tuple(TracedRun(**each) for each in facts.get("traced", ()))
        return Reply(states, statistics, _text(facts["config"]), executors, traced)
    except (TypeError, KeyError, ValueError, AttributeError):
        raise ProtocolError("the control socket's answer cannot be read; update the older side") from None


def _object(line: bytes) -> dict[str, Any]:
    try:
        facts = json.loads(line)
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict):
        raise ProtocolError("what came on the control socket is no line of JSON; check who speaks there")
    return facts


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError("text expected")
    return value


def _statistics(facts: dict[str, Any]) -> ModelStatistics:
    names = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
    batches = tuple(
        BatchStatistics(each["batch_size"], *(Duration(**each[name]) for name in names[3:]))
        for each in facts["batches"]
    )
    failures = tuple((str(reason), int(count)) for reason, count in facts["failures"])
    durations = {name: Duration(**facts[name]) for name in names}
    return ModelStatistics(**{**facts, **durations, "batches": batches, "failures": failures})
