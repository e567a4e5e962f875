"""The final frames that an executor makes: replies, errors, and the refusal of a slot that is too small.

This module sends nothing and runs nothing. Read `workers/executor.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fabric.errors import DuplicateRequest, InvalidArgument, ModelFailed, OverspillError, ReplyTooLarge
from fabric.frame import NO_SLOT, ErrorFrame, ReplyFrame, RequestFrame, encode_error, encode_reply
from workers.keep import KeptReply

if TYPE_CHECKING:
    from fabric.memory.arena import Arena
    from workers.execution import Run
    from workers.handover import Task

SMALL_REPLY_BYTES: Final = 64 * 1024
"""Replies below this are kept in our own memory (2 us at most); a caller of larger ones keeps the slot as it is until
the request is acknowledged."""


class Finals:
    """The frames of one generation of an executor, of one life of its node."""

    __slots__ = ("_generation", "_node_epoch")

    def __init__(self, node_epoch: int, generation: int) -> None:
        self._node_epoch = node_epoch
        self._generation = generation

    def reply(self, task: Task, request: RequestFrame, kept: KeptReply, queue_us: int) -> bytes:
        """The frame of a reply that lies in its slot. Raises ModelFailed where it is no frame."""
        frame = ReplyFrame(
            request.client_id,
            request.request_no,
            self._node_epoch,
            len(kept.memory),
            request.reply_offset,
            self._generation,
            queue_us,
            kept.compute_us,
            task.load,
            kept.descriptors,
        )
        try:
            return encode_reply(frame)
        except InvalidArgument as error:  # it is the model that gave so many names and shapes
            raise ModelFailed(f"the reply of model {request.model!r} cannot travel: {error}") from None

    def again(self, task: Task, request: RequestFrame, kept: KeptReply | None, slot: memoryview) -> bytes:
        """The frame of a reply that is kept, which is written to the slot first. Raises DuplicateRequest where none is
        kept."""
        if kept is None:
            raise DuplicateRequest(
                f"request {request.request_no} ran and its reply is no longer kept; it did not run again"
            )
        if len(kept.memory) > len(slot):
            return self.too_large(task, request, len(kept.memory))
        slot[: len(kept.memory)] = kept.memory
        return self.reply(task, request, kept, 0)

    def too_large(self, task: Task, request: RequestFrame, needed_bytes: int) -> bytes:
        """The frame that asks for a larger slot."""
        error = ReplyTooLarge(
            f"the reply takes {needed_bytes} bytes and its slot has {request.reply_capacity};"
            " ask again with a larger one, it is kept for a minute",
            needed_bytes=needed_bytes,
        )
        return self.error(task, request, error)

    def error(self, task: Task, request: RequestFrame, error: OverspillError) -> bytes:
        """The frame of an error."""
        return encode_error(ErrorFrame(request.client_id, request.request_no, self._node_epoch, error, task.load))


def slot_of(arena: Arena, request: RequestFrame) -> memoryview:
    """The place that a request gives for its reply, empty where it gives none."""
    if request.reply_offset == NO_SLOT:
        return memoryview(bytearray())
    return arena.view[request.reply_offset : request.reply_offset + request.reply_capacity]


def kept_reply(tenant_no: int, run: Run, slot: memoryview, began_ns: int) -> KeptReply:
    """What is kept of a run, so that its reply can be sent again."""
    memory: bytes | memoryview = slot[: run.layout.body_bytes]
    if run.aside is not None:
        memory, tenant_no = run.aside, 0
    elif len(memory) < SMALL_REPLY_BYTES:
        # Its slot may serve the next call as soon as this one is answered, while the same id is asked again.
        memory, tenant_no = bytes(memory), 0
    return KeptReply(tenant_no, memory, run.layout.encoded, run.compute_us, began_ns / 1e9)
