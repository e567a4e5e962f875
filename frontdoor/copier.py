"""The program of a copier: it maps memory that it is told of and copies within it, until its front door ends.

A client may cut its shared memory while it is copied, and whoever touches it then dies of SIGBUS. That is this process,
which holds nothing that anybody would miss. It starts in hundredths of a second, and its memory is 10 MB, since it
imports Python's own library alone. This module never decides what is copied. Read `frontdoor/seat.py` next.
"""

from __future__ import annotations

import array
import ctypes
import mmap
import os
import resource
import signal
import socket
import struct
import sys
from contextlib import suppress
from typing import Final

# What it is told, in words of 64 bits. Only a copy is answered, by one byte.
DO_COPY: Final = 1
"""Number and place of the source, number and place of the target, bytes."""
DO_MAP: Final = 2
"""Number and bytes of memory whose descriptor comes with it, and where it begins in that."""
DO_FORGET: Final = 3
"""Numbers of memory to unmap."""
FORGET_MAX: Final = 500
DONE: Final = b"d"
NO_SOURCE: Final = b"s"
NO_TARGET: Final = b"t"
"""It is not mapped."""
PIECE_BYTES: Final = 512 << 10
"""As in `fabric/memory/copying.py`, which tells why."""
_WORD_BYTES: Final = 8
_MESSAGE_BYTES: Final = (1 + FORGET_MAX) * _WORD_BYTES
_FD_BYTES: Final = array.array("i").itemsize
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4  # prctl(2)


def words(*numbers: int) -> bytes:
    """A message of these numbers."""
    return struct.pack(f"={len(numbers)}Q", *numbers)


def confine(parent_pid: int) -> None:
    """Has this process end with its parent, and leave no core: a client may have it die as often as it likes."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a service's end is told to all; the front door's takes copies yet
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, files_max))  # each `mmap` keeps a descriptor
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl(_PR_SET_DUMPABLE, 0)  # nor for a program that takes cores, whatever their limit
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        sys.exit(0)


class Mapped:  # mutable: what is mapped
    """What this process has mapped, by the numbers that its front door gave."""

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}

    def map(self, number: int, nbytes: int, begin: int, fd: int) -> None:
        """Maps bytes of a file from a page's begin on, and closes its descriptor. What cannot be mapped is missed when
        it is copied."""
        try:
            with suppress(OSError, ValueError):  # the latter: it is shorter than that by now
                self._maps[number] = mmap.mmap(fd, nbytes, offset=begin)
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """Unmaps it, if it is there."""
        mapped = self._maps.pop(number, None)
        if mapped is not None:
            mapped.close()

    def copy(self, source: int, at: int, target: int, to: int, nbytes: int) -> bytes:
        """Copies; gives the answer. May be the end of this process."""
        if source not in self._maps:
            return NO_SOURCE
        if target not in self._maps:
            return NO_TARGET
        with memoryview(self._maps[source]) as read, memoryview(self._maps[target]) as written:
            for done in range(0, nbytes, PIECE_BYTES):
                step = min(PIECE_BYTES, nbytes - done)
                written[to + done : to + done + step] = read[at + done : at + done + step]
        return DONE


def serve(sock: socket.socket) -> None:
    """Does what it is told, one after the other, until the other end is closed."""
    mapped = Mapped()
    while True:
        message, ancillary, _, _ = sock.recvmsg(_MESSAGE_BYTES, socket.CMSG_SPACE(_FD_BYTES), socket.MSG_CMSG_CLOEXEC)
        if not message:
            return
        what, *numbers = struct.unpack(f"={len(message) // _WORD_BYTES}Q", message)
        if what == DO_COPY:
            sock.send(mapped.copy(*numbers))
        elif what == DO_MAP:
            # Without one there was no descriptor left for it; then it is not mapped.
            for _, _, data in ancillary:
                number, nbytes, begin = numbers
                mapped.map(number, nbytes, begin, array.array("i", data)[0])
        else:
            for number in numbers:
                mapped.forget(number)


def main() -> None:
    """The process. Its arguments are the number of its socket and its parent's process."""
    confine(int(sys.argv[2]))
    with socket.socket(fileno=int(sys.argv[1])) as sock, suppress(ConnectionResetError, BrokenPipeError):
        serve(sock)  # those are its end as well, where an answer was not read


if __name__ == "__main__":
    main()
