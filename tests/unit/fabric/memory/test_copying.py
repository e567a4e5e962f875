"""Copies in pieces give what one copy gives, whatever the arrays look like."""

from __future__ import annotations

import numpy as np
import pytest

from fabric.memory.copying import PIECE_BYTES, copy_array, copy_bytes

SIZES = [0, 1, PIECE_BYTES - 4, PIECE_BYTES, PIECE_BYTES + 4, 3 * PIECE_BYTES - 8, 3 * PIECE_BYTES]
RANDOM = np.random.default_rng(5)


@pytest.mark.parametrize("nbytes", SIZES)
def test_every_byte_and_none_behind_it(nbytes: int) -> None:
    source = RANDOM.integers(0, 256, nbytes, np.uint8)
    memory = np.full(nbytes + 64, 7, np.uint8)
    copy_array(memory[32 : 32 + nbytes], source)
    assert np.array_equal(memory[32 : 32 + nbytes], source)
    assert (memory[:32] == 7).all()
    assert (memory[32 + nbytes :] == 7).all()


@pytest.mark.parametrize("nbytes", SIZES)
def test_bytes(nbytes: int) -> None:
    source = RANDOM.bytes(nbytes)
    target = bytearray(nbytes)
    copy_bytes(memoryview(target), memoryview(source))
    assert target == source


SHAPE = (3, 701, 401)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(RANDOM.random(SHAPE, np.float32), id="as it is"),
        pytest.param(RANDOM.random(SHAPE[::-1], np.float32).T, id="turned"),
        pytest.param(RANDOM.random((6, *SHAPE[1:]), np.float32)[::2], id="every other"),
        pytest.param(RANDOM.random(SHAPE[1:], np.float32), id="spread"),
        pytest.param(RANDOM.integers(0, 99, SHAPE, np.int16), id="cast"),
    ],
)
def test_what_cannot_be_divided_is_copied_as_numpy_does(source: np.ndarray) -> None:
    target, wanted = np.zeros(SHAPE, np.float32), np.zeros(SHAPE, np.float32)
    np.copyto(wanted, source)
    copy_array(target, source)
    assert np.array_equal(target, wanted)


def test_shapes_that_do_not_fit_are_refused_as_numpy_does() -> None:
    target, source = np.zeros((2, 1 << 19), np.float32), np.zeros((3, 1 << 19), np.float32)
    with pytest.raises(ValueError, match="broadcast"):
        copy_array(target, source)
