"""Checks where a request's inputs and its reply lie, before an executor relies on it.

This module never looks at what lies there. Read `workers/reception.py` next.
"""

# Pure: no clock, no sockets, no randomness of its own.

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fabric.errors import InvalidArgument
from fabric.frame import NO_SLOT

if TYPE_CHECKING:
    from fabric.frame import RequestFrame

SLOT_ALIGN: Final = 64
"""Bodies and replies start at such a multiple, so that the tensors in them do too."""


def check_places(request: RequestFrame, arena_bytes: int) -> None:
    """Raises InvalidArgument unless inputs and reply lie in the tenant's arena: executors rely on it."""
    body_at, reply_at = request.body_offset, request.reply_offset
    if body_at == NO_SLOT:
        if request.body_bytes:
            raise InvalidArgument(f"{request.body_bytes} bytes of inputs lie nowhere; write them into the arena")
    elif body_at % SLOT_ALIGN or body_at + request.body_bytes > arena_bytes:
        raise InvalidArgument(
            f"inputs of {request.body_bytes} bytes at {body_at} do not lie in the arena of {arena_bytes},"
            f" at a multiple of {SLOT_ALIGN}; lease their place"
        )
    if reply_at != NO_SLOT and (reply_at % SLOT_ALIGN or reply_at + request.reply_capacity > arena_bytes):
        raise InvalidArgument(
            f"a reply of {request.reply_capacity} bytes at {reply_at} does not lie in the arena of {arena_bytes},"
            f" at a multiple of {SLOT_ALIGN}; lease its place"
        )
