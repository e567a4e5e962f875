"""Where everything of one batch lies in device memory: one block, so that one copy brings the request, one the reply.

From the start: the kernels' list of addresses, the rows of the launches, the request's tensors, the riders' hands, and
the reply's tensors in the order of contract.OUTPUTS. Tensors from DIRECT_BYTES on are copied from where they lie, the
others by way of a page-locked block. It is plain numpy and needs no GPU. Next: `solve.py`.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.dispatch.route_plan.contract import INPUTS, OUTPUTS, Answer, Batch
from examples.dispatch.route_plan.gpu.source import HAND_BYTES, HEAD
from examples.dispatch.route_plan.layout import ORDERS_MAX, STOPS_MAX

ALIGN_BYTES = 256
DIRECT_BYTES = 1 << 20  # below it the copy into the page-locked block costs less than a copy command of its own

Block = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Section:
    """A piece of the block, in bytes from its start."""

    at: int
    size: int

    @property
    def end(self) -> int:
        """The byte after the last."""
        return self.at + self.size


@dataclass(frozen=True, slots=True)
class Plan:
    """The sections of one batch's block. `inputs` and `outputs` stand in the order of the contract."""

    head: Section
    rows: Section
    inputs: tuple[Section, ...]
    staged: Section  # everything up to the first tensor that is copied from where it lies
    hands: Section
    hand_routes: Section
    outputs: tuple[Section, ...]
    reply: Section

    @property
    def size(self) -> int:
        """Bytes of the whole block."""
        return self.reply.end


def plan_of(batch: Batch) -> Plan:
    """Lay a batch out."""
    riders, pairs = len(batch.riders), len(batch.pairs)
    tensors = list(batch.tensors().values())
    small_first = sorted(range(len(INPUTS)), key=lambda k: is_direct(tensors[k]))
    sizes = [8 * len(HEAD), 4 * (riders + pairs), *(tensors[k].nbytes for k in small_first)]
    sizes += [HAND_BYTES * riders, STOPS_MAX * riders, *_reply_bytes(pairs)]
    starts = accumulate((-(-size // ALIGN_BYTES) * ALIGN_BYTES for size in sizes), initial=0)
    sections = [Section(at, size) for at, size in zip(starts, sizes, strict=False)]
    inputs = dict(zip(small_first, sections[2 : 2 + len(INPUTS)], strict=True))
    hands, hand_routes, *outputs = sections[2 + len(INPUTS) :]
    direct = [section.at for k, section in inputs.items() if is_direct(tensors[k])]
    return Plan(
        head=sections[0],
        rows=sections[1],
        inputs=tuple(inputs[k] for k in range(len(INPUTS))),
        staged=Section(0, min(direct, default=hands.at)),
        hands=hands,
        hand_routes=hand_routes,
        outputs=tuple(outputs),
        reply=Section(outputs[0].at, outputs[-1].end - outputs[0].at),
    )


def is_direct(tensor: NDArray[Any]) -> bool:
    """Whether a tensor is copied to the device from where it lies."""
    return tensor.nbytes >= DIRECT_BYTES


def head_of(plan: Plan, batch: Batch, base: int) -> NDArray[np.int64]:
    """The kernels' list for a block that begins at address `base`, in the order of source.HEAD."""
    sections = (*plan.inputs, plan.hands, plan.hand_routes, *plan.outputs)
    lengths = (batch.riders, batch.orders, batch.hand, batch.route, batch.matrix_start, batch.seconds)
    words = [base + section.at for section in sections] + [len(table) for table in lengths]
    assert len(words) == len(HEAD)
    return np.array(words, np.int64)


def stage(plan: Plan, batch: Batch, base: int, block: Block) -> None:
    """Write the list of addresses and all small tensors into the staging block (of plan.staged.size bytes)."""
    put(block, plan.head, head_of(plan, batch, base))
    for section, tensor in zip(plan.inputs, batch.tensors().values(), strict=True):
        if not is_direct(tensor):
            put(block, section, tensor)


def put(block: Block, section: Section, array: NDArray[Any]) -> None:
    """Copy an array's bytes to where a section begins."""
    assert array.nbytes <= section.size
    block[section.at : section.at + array.nbytes] = array.reshape(-1).view(np.uint8)


def answer_of(plan: Plan, pairs: int, reply: Block) -> Answer:
    """The answer as views of the reply's bytes."""
    arrays = []
    for section, (_, dtype, shape) in zip(plan.outputs, OUTPUTS, strict=True):
        at = section.at - plan.reply.at
        arrays.append(reply[at : at + section.size].view(dtype).reshape(pairs, *shape[1:]))
    return Answer(*arrays)


def _reply_bytes(pairs: int) -> list[int]:
    widths = {"stops": STOPS_MAX, "arrivals": ORDERS_MAX}
    return [pairs * widths.get(name, 1) * np.dtype(dtype).itemsize for name, dtype, _ in OUTPUTS]
