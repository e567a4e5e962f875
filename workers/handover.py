"""What a node and its executor say to each other: the prefixes of tasks and answers, and control words.

Tasks and answers are a tenant's own frames behind a prefix, so nothing is decoded and encoded twice. All times are the
system's monotonic clock, which both processes read. This module never sends. Read `workers/executor.py` for the one
end, `workers/shell.py` for the other.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import Any, Final, final

from fabric.errors import ProtocolError
from fabric.frame import Load

TASK_MAGIC: Final = b"OTSK"
DONE_MAGIC: Final = b"ODNE"
CONTROL_MAGIC: Final = b"OCTL"
MAGIC_BYTES: Final = 4

_TASK: Final = struct.Struct("<4sHHQIIQQQQQ")
TASK_BYTES: Final = _TASK.size  # 64
assert TASK_BYTES == 64, "fabric/local/sockets.py leaves this much room before a frame"
_DONE: Final = struct.Struct("<4sIQQIIIII")
DONE_BYTES: Final = _DONE.size

RESEND: Final = 1
"""Flag of a task: send the kept reply of this request again; do not run it."""
MORE: Final = 2
"""Flag of a task: it runs together with the next one."""
DELIVERED: Final = 1
"""Flag of an answer: the tenant has it already."""
KEPT: Final = 2
"""Flag of an answer: the executor holds the reply and can send it again."""
RAN: Final = 4
"""Flag of an answer: the model's code ran, so `compute_us` says how long."""
LEADS: Final = 8
"""Flag of an answer: it counts the run. All requests but one of a batch come without it."""
PASSED: Final = 16
"""Flag of an answer: it is none, but a leg of an ensemble has run, and what follows says what it gives to the next."""
HEAVY_LIBRARIES: Final = ("cupy", "torch", "onnxruntime", "tensorrt", "numba", "scipy")
"""Libraries whose import takes long enough that a standby should have done it: 0.3 to 3 s each were seen."""
_U32_MAX: Final = 0xFFFF_FFFF
_GARBLED: Final = "wrote what is no message to its node; look which of its models writes to descriptors of others"


@final
@dataclass(init=False, slots=True)
class Task:  # mutable: made for each request, see fabric/frame_values.py
    """A task's prefix: whose request follows, when it came, until when it may begin, and the load to report."""

    flags: int
    task_no: int
    tenant_no: int
    socket_no: int
    arrived_ns: int
    deadline_ns: int
    load: Load

    def __init__(
        self, flags: int, task_no: int, tenant_no: int, socket_no: int, arrived_ns: int, deadline_ns: int, load: Load
    ) -> None:
        self.flags = flags
        self.task_no = task_no
        self.tenant_no = tenant_no
        self.socket_no = socket_no
        self.arrived_ns = arrived_ns
        self.deadline_ns = deadline_ns
        self.load = load


def pack_task(task: Task) -> bytes:
    """The prefix of a task; the tenant's REQUEST frame follows it."""
    load = task.load
    return _TASK.pack(
        TASK_MAGIC,
        task.flags,
        load.executors,
        task.task_no,
        task.tenant_no,
        task.socket_no,
        task.arrived_ns,
        task.deadline_ns,
        load.sequence,
        load.accepted,
        load.outstanding_us,
    )


def unpack_task(message: bytes) -> Task:
    """Reads the prefix of a task."""
    _, flags, executors, task_no, tenant_no, socket_no, arrived, deadline, sequence, accepted, outstanding = (
        _TASK.unpack_from(message)
    )
    load = Load(sequence, accepted, outstanding, executors)
    return Task(flags, task_no, tenant_no, socket_no, arrived, deadline, load)


@final
@dataclass(init=False, slots=True)
class Spent:  # mutable: made for each request, see fabric/frame_values.py
    """What a request took in its executor: `compute_us` is the whole run, with `input_us` before the model's own code
    and `output_us` after it. Of `batch_rows` items that ran together `rows` were its own; 1 each without batching."""

    compute_us: int
    queue_us: int
    input_us: int
    output_us: int
    rows: int
    batch_rows: int

    def __init__(
        self, compute_us: int, queue_us: int, input_us: int, output_us: int, rows: int, batch_rows: int
    ) -> None:
        self.compute_us = compute_us
        self.queue_us = queue_us
        self.input_us = input_us
        self.output_us = output_us
        self.rows = rows
        self.batch_rows = batch_rows


NOTHING_SPENT: Final = Spent(0, 0, 0, 0, 0, 0)


def pack_done(flags: int, task_no: int, spent: Spent) -> bytes:
    """The prefix of an answer; the final frame follows it."""
    return _DONE.pack(
        DONE_MAGIC, flags, task_no, spent.compute_us, min(spent.queue_us, _U32_MAX), min(spent.input_us, _U32_MAX),
        min(spent.output_us, _U32_MAX), spent.rows, spent.batch_rows,
    )  # fmt: skip


def unpack_done(message: bytes) -> tuple[int, int, Spent]:
    """(flags, task_no, what was spent) of an answer. Raises ProtocolError when it is none."""
    if len(message) < DONE_BYTES or message[:MAGIC_BYTES] != DONE_MAGIC:
        raise ProtocolError(_GARBLED)
    _, flags, task_no, compute_us, queue_us, input_us, output_us, rows, batch_rows = _DONE.unpack_from(message)
    return flags, task_no, Spent(compute_us, queue_us, input_us, output_us, rows, batch_rows)


@dataclass(frozen=True, slots=True)
class Loaded:
    """What became of one model in an executor. `runs_us` are its warm-up runs; `refused` says why it cannot serve."""

    model: str
    runs_us: tuple[int, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Control:
    """A word between node and executor; a descriptor comes with `arena`, `socket`, `resident` and `fill`.

    Node to executor: `load` (models to load), `arena` and `socket` (a tenant's, by number), `forget` (a tenant),
    `hang_up` (a socket), `resident` (one by number, its name and bytes), `fill` (the same, empty), `let_go` (of a
    resident), `parcel` and `leg` (for the next task: `workers/legwords.py`), `returned` (bytes of parcels), `exit`. The
    other way: `loading` (the model it is at), `ready` (what became of each), `filled` (a resident, which is what its
    name says), `reached` and `unreachable` (an executor's card, by number).
    """

    word: str
    number: int = 0
    models: tuple[str, ...] = ()
    loaded: tuple[Loaded, ...] = ()
    digest: str = ""
    nbytes: int = 0
    text: str = ""


def encode_control(control: Control) -> bytes:
    """The word as it travels."""
    loaded = [[each.model, list(each.runs_us), each.refused] for each in control.loaded]
    rest = (control.digest, control.nbytes, control.text)
    return CONTROL_MAGIC + json.dumps([control.word, control.number, list(control.models), loaded, *rest]).encode()


def decode_control(message: bytes) -> Control:
    """Reads a word. Raises ProtocolError when it is none: a model may write to descriptors that are not its own."""
    try:
        parts: Any = json.loads(message[MAGIC_BYTES:])
        word, number, models, loaded, digest, nbytes, text = parts
        results = tuple(Loaded(str(name), tuple(map(int, runs)), str(why)) for name, runs, why in loaded)
        return Control(str(word), int(number), tuple(map(str, models)), results, str(digest), int(nbytes), str(text))
    except (ValueError, TypeError, RecursionError):
        raise ProtocolError(_GARBLED) from None
