"""A lease comes back exactly once: by release, by its block, or with the last array over it."""

from __future__ import annotations

import gc
import os

import numpy as np
import pytest

from fabric.dtypes import DType, bytes_encode
from fabric.errors import ConfigError, InvalidArgument, ProtocolError, ResourceExhausted
from fabric.layout import TensorSpec, layout_of
from fabric.memory.arena import ARENA_BYTES_MAX, Arena
from fabric.memory.lease import Lease, tensor_view, tensors

ARENA_BYTES = 1 << 20


def _arena() -> Arena:
    """No fixture: pytest would keep it, and with it the mapping, until the leaks are counted."""
    return Arena.create(ARENA_BYTES)


def test_release_is_once() -> None:
    arena = _arena()
    lease = Lease.of(arena, 5000)
    assert (lease.nbytes, arena.lent_bytes()) == (8192, 8192)
    lease.release()
    lease.release()
    assert lease.released
    assert arena.lent_bytes() == 0


def test_what_its_writer_and_its_holder_are_done_with_is_free() -> None:
    arena = _arena()
    slots = [arena.lease(ARENA_BYTES // 2) for _ in range(2)]
    arena.writer_began(*slots)
    for slot in slots:
        arena.finish(slot)
    assert arena.lent_bytes() == 0
    assert arena.lease(ARENA_BYTES).nbytes == ARENA_BYTES, "both halves are free, and joined"


def test_a_block_gives_back() -> None:
    arena = _arena()
    with pytest.raises(KeyError), Lease.of(arena, 1):
        raise KeyError
    assert arena.lent_bytes() == 0


def test_arrays_keep_the_slot() -> None:
    arena = _arena()
    layout = layout_of((TensorSpec.of("a", DType.FP32, (10, 3)), TensorSpec.of("b", DType.INT8, (0,))))
    lease = Lease.of(arena, layout.body_bytes)
    tensor_view(lease.view, layout.specs[0], layout.offsets[0])[:] = np.arange(30, dtype=np.float32).reshape(10, 3)
    first, second = tensors(lease.view, layout)
    del lease
    gc.collect()
    part = first[2:4].T
    del first
    gc.collect()
    assert arena.lent_bytes() == 4096, "a view of a view is still over the slot"
    assert part.tolist() == [[6, 9], [7, 10], [8, 11]]
    with pytest.raises(ValueError, match="read-only"):
        part[0, 0] = 1
    assert second.shape == (0,)
    del part, second
    gc.collect()
    assert arena.lent_bytes() == 0


def test_released_before_the_arrays_are_gone() -> None:
    arena = _arena()
    lease = Lease.of(arena, 64)
    array = np.frombuffer(lease.view, np.uint8)
    lease.release()
    del array, lease
    gc.collect()
    assert arena.lent_bytes() == 0


def test_quarantine_outlives_the_lease() -> None:
    arena = _arena()
    lease = Lease.of(arena, ARENA_BYTES)
    slot = lease.slot
    arena.writer_began(slot)
    lease.release()
    with pytest.raises(ResourceExhausted):
        Lease.of(arena, 1)
    arena.writer_ended(slot)
    Lease.of(arena, 1).release()


def test_bytes_are_decoded_from_a_private_copy() -> None:
    arena = _arena()
    raw = bytes_encode([b"one", b"", b"three"])
    layout = layout_of((TensorSpec("t", DType.BYTES, (3, 1), len(raw)),))
    with Lease.of(arena, layout.body_bytes) as lease:
        lease.view[: len(raw)] = raw
        (array,) = tensors(lease.view, layout)
        lease.view[: len(raw)] = b"\xff" * len(raw)
        assert array.tolist() == [[b"one"], [b""], [b"three"]]
        with pytest.raises(InvalidArgument):
            tensors(lease.view, layout)


def test_a_retired_arena_lends_nothing() -> None:
    arena = _arena()
    lease = Lease.of(arena, 64)
    arena.retire()
    with pytest.raises(ResourceExhausted, match="gone"):
        Lease.of(arena, 64)
    lease.view[:3] = b"abc"
    lease.release()


def test_both_ends_see_the_same_memory() -> None:
    arena = _arena()
    other = Arena.attach(os.dup(arena.fd))
    arena.view[100:103] = b"abc"
    assert bytes(other.view[100:103]) == b"abc"
    assert other.nbytes == arena.nbytes
    other.close_fd()


@pytest.mark.parametrize("nbytes", [0, -1, ARENA_BYTES_MAX + 1])
def test_sizes_out_of_range(nbytes: int) -> None:
    with pytest.raises(ConfigError, match="arena_bytes"):
        Arena.create(nbytes)


def test_it_cannot_be_truncated_or_unsealed() -> None:
    arena = _arena()
    for size in (0, ARENA_BYTES * 2):
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(arena.fd, size)


@pytest.mark.parametrize("size", [0, 4096, 5000])
def test_only_sealed_memory_of_a_right_size_is_mapped(size: int) -> None:
    fd = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    with pytest.raises(ProtocolError, match="sealed"):
        Arena.attach(fd)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(fd)


def test_what_is_no_memory_is_refused() -> None:
    read_end, write_end = os.pipe()
    os.close(write_end)
    with pytest.raises(ProtocolError, match="no arena"):
        Arena.attach(read_end)


def test_who_booked_a_loan_is_told_when_no_array_is_left_whoever_released_it() -> None:
    arena = _arena()
    lease = Lease.of(arena, 64)
    array = np.frombuffer(lease.view, np.uint8)
    ended: list[int] = []
    lease.on_end(ended.append, 7)
    lease.on_end(ended.append, 8)
    lease.release()
    del lease
    gc.collect()
    assert ended == []
    del array
    gc.collect()
    assert ended == [7, 8]
