"""What an executor holds: filled from a private copy, verified, sealed, and gone when it is dropped."""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from fabric.errors import InvalidArgument
from workers.backends.base import Inputs
from workers.held import PIECE_BYTES, HeldResidents

CONTENT = bytes(range(256)) * 4
NAME = hashlib.sha256(CONTENT).digest()


def memory(nbytes: int) -> int:
    fd = os.memfd_create("test-resident", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, nbytes)
    return fd


def test_a_content_is_found_under_its_name_and_nobody_can_write_to_it_any_more() -> None:
    held, fd = HeldResidents(), memory(len(CONTENT))
    mine = os.dup(fd)
    held.give(1, NAME, len(CONTENT), fd, whole=False)
    assert held.find(NAME) is None
    assert held.fill(NAME, memoryview(CONTENT)) == 1
    found = held.find(NAME)
    assert found is not None
    assert found[:] == CONTENT
    with pytest.raises(TypeError):
        found[0] = 1
    assert fcntl.fcntl(mine, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
    other = HeldResidents()
    other.give(1, NAME, len(CONTENT), mine, whole=True)
    assert other.find(NAME) is not None
    held.forget(1)
    assert held.find(NAME) is None
    assert found[:] == CONTENT, "what still looks at it keeps it"
    held.forget(1)


def test_another_content_is_refused_and_never_found() -> None:
    held = HeldResidents()
    held.give(1, NAME, len(CONTENT), memory(len(CONTENT)), whole=False)
    with pytest.raises(InvalidArgument, match="another content"):
        held.fill(NAME, memoryview(bytes(len(CONTENT))))
    assert held.find(NAME) is None
    assert held.fill(NAME, memoryview(CONTENT)) == 0, "nobody waits for it any more"


def test_what_nobody_waits_for_is_not_taken_in() -> None:
    held = HeldResidents()
    assert held.fill(NAME, memoryview(CONTENT)) == 0
    assert held.find(NAME) is None


def test_a_content_of_many_pieces_is_hashed_whole() -> None:
    content = os.urandom(PIECE_BYTES * 2 + 12345)
    name = hashlib.sha256(content).digest()
    held = HeldResidents()
    held.give(7, name, len(content), memory(len(content)), whole=False)
    assert held.fill(name, memoryview(content)) == 7
    found = held.find(name)
    assert isinstance(found, mmap.mmap)
    assert found[:] == content


def test_what_is_dropped_before_it_was_filled_leaves_no_descriptor() -> None:
    held = HeldResidents()
    before = len(list(Path("/proc/self/fd").iterdir()))
    held.give(1, NAME, len(CONTENT), memory(len(CONTENT)), whole=False)
    held.forget(1)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_model_is_told_the_name_of_a_resident_so_that_it_may_keep_what_it_makes_of_it() -> None:
    inputs = Inputs({"table": np.zeros(3), "at": np.zeros(1)}, {"table": NAME})
    assert inputs.resident("table") == NAME
    assert inputs.resident("at") == b""
    assert Inputs({"at": np.zeros(1)}).resident("at") == b""
