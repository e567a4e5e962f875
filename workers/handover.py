"""What a node and its executor say to each other: the prefixes of tasks and answers, control words, the shared page.

Tasks and answers are a tenant's own frames behind a prefix, so nothing is decoded and encoded twice. All times are the
system's monotonic clock, which both processes read. This module never sends. Read `workers/executor.py` for the one
end, `workers/shell.py` for the other.
"""

from __future__ import annotations

import json
import mmap
import os
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


_HEARTBEAT: Final = 0
_RUNNING: Final = 1
_BEGAN: Final = 2
_ANSWERED: Final = 3
_REGISTERED: Final = 4
_PINNED: Final = 5
_PASSED: Final = 6
_ASIDE: Final = 9  # _PASSED takes three


class SharedPage:  # mutable: words of memory that two processes map
    """One page per executor: it writes, its node reads. A word is written whole, since it is aligned."""

    __slots__ = ("_map", "_words", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE, mmap.MAP_SHARED)
        self._words = memoryview(self._map).cast("Q")

    @classmethod
    def create(cls) -> SharedPage:
        """Makes the memory; it goes with the last process that maps it."""
        fd = os.memfd_create("overspill-executor", os.MFD_CLOEXEC)
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def close(self) -> None:
        """Unmaps the page and closes its descriptor."""
        if self.fd >= 0:
            self._words.release()
            self._map.close()
            os.close(self.fd)
            self.fd = -1

    def beat(self) -> None:
        """The executor shows that its threads run."""
        self._words[_HEARTBEAT] += 1

    def began(self, task_no: int, now_ns: int) -> None:
        """The executor is about to run a task."""
        self._words[_BEGAN] = now_ns
        self._words[_RUNNING] = task_no

    def answered(self, task_no: int) -> None:
        """The tenant has the running task's final frame."""
        self._words[_ANSWERED] = task_no

    def ended(self) -> None:
        """The node was told of the running task, whose number stays."""
        self._words[_BEGAN] = 0

    def aside(self, since_ns: int) -> None:
        """Since then the executor is at what belongs to no task, such as the end of a stream; 0 when that is done."""
        self._words[_ASIDE] = since_ns

    def pinned(self, registered: int, nbytes: int) -> None:
        """The executor has registered memory with its device so often, and so many bytes are now."""
        self._words[_REGISTERED] = registered
        self._words[_PINNED] = nbytes

    def passed(self, card_bytes: int, host_bytes: int, fallbacks: int) -> None:
        """The executor has given so many bytes to later steps, in its card's memory and in the host's."""
        self._words[_PASSED] = card_bytes
        self._words[_PASSED + 1] = host_bytes
        self._words[_PASSED + 2] = fallbacks

    @property
    def passed_on(self) -> tuple[int, int, int]:
        """What `passed` was last told."""
        return self._words[_PASSED], self._words[_PASSED + 1], self._words[_PASSED + 2]

    @property
    def heartbeat(self) -> int:
        """How many times the executor has shown a sign of life."""
        return self._words[_HEARTBEAT]

    @property
    def running(self) -> tuple[int, int]:
        """(task number or 0, when it began in monotonic nanoseconds)."""
        began_ns = self._words[_BEGAN]
        return self._words[_RUNNING] if began_ns else 0, began_ns

    @property
    def aside_ns(self) -> int:
        """Since when it is at what belongs to no task, in monotonic nanoseconds; 0 while it is not."""
        return self._words[_ASIDE]

    @property
    def begun_no(self) -> int:
        """The last task that was begun. Tasks are begun in the order of their numbers."""
        return self._words[_RUNNING]

    @property
    def answered_no(self) -> int:
        """The last task whose final frame its tenant got straight from the executor."""
        return self._words[_ANSWERED]

    @property
    def registered(self) -> int:
        """How often it has registered memory with its device."""
        return self._words[_REGISTERED]

    @property
    def pinned_bytes(self) -> int:
        """How much of the tenants' memory is registered with its device."""
        return self._words[_PINNED]
