"""What this machine can do at best, measured in the same run: a bare socket ping-pong, and a memory copy."""

from __future__ import annotations

import multiprocessing
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from tests.benchmarks.timing import p50_us

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MESSAGE = bytes(128)
"""About the size of one of our frames."""


def _ponger(sock: socket.socket) -> None:
    while message := sock.recv(4096):
        sock.send(message)


@contextmanager
def doorbell() -> Iterator[Callable[[], object]]:
    """A ping-pong of two Python processes over a SOCK_SEQPACKET Unix socket, blocking, nothing else done."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = multiprocessing.get_context("fork").Process(target=_ponger, args=(theirs,), daemon=True)
    process.start()
    theirs.close()

    def call() -> bytes:
        ours.send(MESSAGE)
        return ours.recv(4096)

    try:
        yield call
    finally:
        ours.shutdown(socket.SHUT_RDWR)
        ours.close()
        process.join(5)


def memcpy_us(size_bytes: int, seconds: float = 0.3) -> float:
    """The median time of one copy of `size_bytes` between two touched buffers, in microseconds."""
    source = np.ones(max(size_bytes, 1), np.uint8)
    target = np.zeros_like(source)
    return p50_us(lambda: np.copyto(target, source), seconds)
