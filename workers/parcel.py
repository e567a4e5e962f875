"""Hands models from a node to an executor: their configurations, in memory whose descriptor travels beside a word.

A configuration may be larger than a message, and what a node has read must be what its executor reads, also when the
file has changed since. This module reads no repository. Read `workers/shelf.py` for who unpacks.
"""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import astuple
from mmap import PROT_READ, mmap
from typing import TYPE_CHECKING

from workers.repository import ModelSource

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def packed(sources: tuple[ModelSource, ...]) -> Iterator[int]:
    """A descriptor of memory that holds the sources, closed with the block. Raises OSError when there is none."""
    fd = os.memfd_create("overspill-models", os.MFD_CLOEXEC)
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(json.dumps([astuple(source) for source in sources]).encode())
        yield fd
    finally:
        os.close(fd)


def unpack(fd: int) -> tuple[ModelSource, ...]:
    """Reads what the node packed, and closes the descriptor.

    Every executor of a node is handed the same open file, position included, and they read at the same time: so the
    position is neither trusted nor moved.
    """
    try:
        with mmap(fd, 0, prot=PROT_READ) as packed_bytes:
            return tuple(ModelSource(*parts) for parts in json.loads(packed_bytes[:]))
    finally:
        os.close(fd)
