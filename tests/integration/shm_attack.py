"""A client and a front door's copies over one region, in one process: run as a program, which a bus error would end.

    python -m tests.integration.shm_attack ROUNDS SEED        a client that cuts, punches, rewrites and replaces
    python -m tests.integration.shm_attack forbidden          no client, and a filter that forbids process_vm_writev

Two threads copy halves in and out as `frontdoor/copies.py` has them, while the client does its worst. Prints how many
copies were whole, and how many were refused.
"""

from __future__ import annotations

import ctypes
import os
import platform
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fabric.errors import InvalidArgument
from frontdoor.clients import Owner
from frontdoor.regions import Regions
from frontdoor.window import Windows

NBYTES = 8 << 20
KEY = f"osp_test_attack_{os.getpid()}"
PATH = Path("/dev/shm") / KEY
OWNER = Owner("me", None, None, ("127.0.0.1", 1))
PUNCH_HOLE_KEEP_SIZE = 3  # fallocate(2)
SIZES = (0, 1, 4096, NBYTES // 2 - 1, NBYTES // 2, NBYTES - 4097, NBYTES - 1)
LIBRARY = ctypes.CDLL(None, use_errno=True)
LIBRARY.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def copies(regions: Regions, ended: threading.Event, threads: ThreadPoolExecutor) -> list[int]:
    """Copies out and in until `ended`; counts those that were whole and those refused. Raises what else it meets."""
    region, half = regions.find(OWNER, "r"), NBYTES // 2
    words, found = memoryview(os.urandom(NBYTES)), memoryview(bytearray(NBYTES))
    counts = [0, 0]
    while not ended.is_set():
        for move, view in ((region.write_part, words), (region.read_part, found)):
            both = [threads.submit(move, 0, at, view[at : at + half]) for at in (0, half)]
            errors = [each.exception(60) for each in both]
            for error in errors:
                if error is not None and not isinstance(error, InvalidArgument):
                    raise error
            counts[any(errors)] += 1
    return counts


def spoil(fd: int, dice: random.Random) -> None:
    """One thing that a client may do to its memory."""
    what = dice.randrange(5)
    if what == 0:
        os.ftruncate(fd, dice.choice(SIZES))
    elif what == 1:
        LIBRARY.fallocate(fd, PUNCH_HOLE_KEEP_SIZE, dice.randrange(NBYTES), 1 << dice.randrange(12, 23))
    elif what == 2:
        os.pwrite(fd, bytes(4096), dice.randrange(NBYTES - 4096))  # makes it longer where it was cut
    elif what == 3:
        PATH.unlink()  # and another file under its name, which is nobody's region
        os.close(os.open(PATH, os.O_CREAT | os.O_RDWR, 0o600))
    ended = threading.Event()
    ended.wait(dice.random() * 2e-3)
    os.ftruncate(fd, NBYTES)


def attack(rounds: int, seed: int) -> None:
    """Prints counts, and ends with an error unless the memory is as good as new afterwards."""
    dice = random.Random(seed)
    fd = os.open(PATH, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, NBYTES)
    regions, ended = Regions(), threading.Event()
    regions.register(OWNER, "r", KEY, 0, NBYTES)
    with ThreadPoolExecutor(3) as threads:
        counting = threads.submit(copies, regions, ended, threads)
        try:
            for _ in range(rounds):
                spoil(fd, dice)
        finally:
            ended.set()
        sys.stdout.write("{} {}\n".format(*counting.result(60)))
    words = os.urandom(NBYTES)
    regions.find(OWNER, "r").write_part(0, 0, memoryview(words))
    assert os.pread(fd, NBYTES, 0) == words
    regions.close()


def forbid(number: int) -> None:
    """Has the kernel answer EPERM to a system call, as a container's filter does."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    # Load the call's number; if it is not this one, leave out the next; refuse with EPERM; allow (seccomp(2)).
    steps = ((0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000))
    code = b"".join(
        word.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)
        for word, yes, no, value in steps
    )
    kept = ctypes.create_string_buffer(code, len(code))
    program = Program(len(steps), ctypes.addressof(kept))
    assert LIBRARY.prctl(38, 1, 0, 0, 0) == 0, "PR_SET_NO_NEW_PRIVS"
    if LIBRARY.prctl(22, 2, ctypes.byref(program), 0, 0):
        sys.stdout.write("no filters here\n")
        sys.exit(0)


def forbidden() -> None:
    """A large output where process_vm_writev is refused."""
    forbid({"x86_64": 311, "aarch64": 271}[platform.machine()])
    fd = os.open(PATH, os.O_CREAT | os.O_RDWR, 0o600)
    os.ftruncate(fd, NBYTES)
    regions = Regions()
    regions.register(OWNER, "r", KEY, 0, NBYTES)
    region, words = regions.find(OWNER, "r"), os.urandom(NBYTES)
    window = Windows().open(fd, NBYTES)
    assert window is not None
    assert window.write(0, memoryview(words)) == 0, "the filter holds"
    region.write_part(0, 0, memoryview(words))
    assert os.pread(fd, NBYTES, 0) == words
    os.ftruncate(fd, NBYTES - 1)
    try:
        region.write_part(0, 0, memoryview(words))
    except InvalidArgument as error:
        sys.stdout.write(f"{error}\n")
    regions.close()


if __name__ == "__main__":
    try:
        forbidden() if sys.argv[1] == "forbidden" else attack(int(sys.argv[1]), int(sys.argv[2]))
    finally:
        PATH.unlink(missing_ok=True)
