"""What this machine can do at best, measured in the same run: a bare socket ping-pong, a memory copy, and the copies of
one echo between two processes that do nothing else."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
from contextlib import contextmanager, suppress
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


PAGE_BYTES = 4096


class _Shared:
    """Memory that two processes map: two counters, each in a cache line of its own, an input and an output."""

    def __init__(self, fd: int, size_bytes: int) -> None:
        room = -(-size_bytes // PAGE_BYTES) * PAGE_BYTES
        os.ftruncate(fd, PAGE_BYTES + 2 * room)
        memory = mmap.mmap(fd, PAGE_BYTES + 2 * room)
        self.asked = np.frombuffer(memory, np.uint32, 1, 0)
        self.answered = np.frombuffer(memory, np.uint32, 1, 64)
        self.input = np.frombuffer(memory, np.uint8, size_bytes, PAGE_BYTES)
        self.output = np.frombuffer(memory, np.uint8, size_bytes, PAGE_BYTES + room)


def _copier(fd: int, size_bytes: int) -> None:
    shared = _Shared(fd, size_bytes)
    parent, number = os.getppid(), 0
    while os.getppid() == parent:
        for _ in range(100_000):
            if shared.asked[0] != number:
                number = int(shared.asked[0])
                np.copyto(shared.output, shared.input)
                shared.answered[0] = number


@contextmanager
def bare_echo(size_bytes: int) -> Iterator[tuple[Callable[[], object], Callable[[], object]]]:
    """Two calls: another process, which looks for work all the time, copies a shared input to a shared output; and the
    same after the caller has copied its own array to the input. No echo between processes can be faster."""
    fd = os.memfd_create("bare-echo")
    shared = _Shared(fd, size_bytes)
    plain = np.ones(size_bytes, np.uint8)
    process = multiprocessing.get_context("fork").Process(target=_copier, args=(fd, size_bytes), daemon=True)
    process.start()

    def leased() -> None:
        number = int(shared.asked[0]) + 1
        shared.asked[0] = number
        while shared.answered[0] != number:
            pass

    def filled() -> None:
        np.copyto(shared.input, plain)
        leased()

    try:
        yield leased, filled
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.join(5)
        os.close(fd)
