"""Requests that begin while their nodes die: inputs find memory, and the request another node."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import ResourceExhausted
from fabric.memory.arena import Arena
from fabric.memory.lease import Lease
from router.staging import Staging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fabric.errors import OverspillError

ROWS = 100_000


@pytest.fixture(autouse=True)
def collected(no_leaks: None) -> Iterator[None]:
    """The traceback of an expected error holds frames, and they hold arenas: those circles are no leaks."""
    yield
    gc.collect()


def same(error: OverspillError) -> OverspillError:
    """Nobody holds anything."""
    return error


def test_inputs_find_memory_though_the_local_node_has_just_died() -> None:
    own, shared = Arena.create(1 << 20), Arena.create(1 << 20)
    staging = Staging(own, lambda: shared, same)  # type: ignore[arg-type]
    shared.retire()  # by the thread that saw it first, before its link is told
    body = staging.stage(None, {"x": np.ones(ROWS, np.float32)})
    assert isinstance(body.memory, Lease)
    assert body.memory.arena is own
    with pytest.raises(ResourceExhausted, match="do not fit"):
        staging.stage(None, {"x": np.ones(10 * ROWS, np.float32)})


def test_a_full_arena_of_a_living_node_is_full() -> None:
    own, shared = Arena.create(1 << 20), Arena.create(1 << 16)
    staging = Staging(own, lambda: shared, same)  # type: ignore[arg-type]
    with pytest.raises(ResourceExhausted, match="do not fit"):
        staging.stage(None, {"x": np.ones(ROWS, np.float32)})
