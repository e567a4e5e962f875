"""Memory for requests to a node: large ones wait for room in the arena, small ones for nothing."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fabric.deadline import Deadline
from fabric.dtypes import DType
from fabric.errors import ArenaFull
from fabric.layout import TensorSpec
from fabric.memory.arena import Arena
from fabric.message import SMALL_BODY_BYTES
from frontdoor.over_node import NodeEngine
from tests.unit.frontdoor.engine import ECHO

ARENA_BYTES = 1 << 20


def test_a_small_request_passes_large_ones_that_wait_for_room() -> None:
    async def story() -> None:
        arena = Arena.create(ARENA_BYTES)
        engine = NodeEngine("nowhere", ("node", 1), cast("Any", SimpleNamespace(draining=False)), ARENA_BYTES)
        engine._channel = cast("Any", SimpleNamespace(alive=True, arena=arena))

        async def stage(nbytes: int) -> Any:
            return await engine.stage(ECHO, (TensorSpec("x", DType.UINT8, (nbytes,), nbytes),), soon(0.05))

        large = await stage(ARENA_BYTES // 4)
        with pytest.raises(ArenaFull):
            await stage(SMALL_BODY_BYTES)
        for _ in range(3):
            (await stage(SMALL_BODY_BYTES // 2)).release()
        large.release()
        (await stage(SMALL_BODY_BYTES)).release()
        arena.close_fd()

    asyncio.run(story())


def soon(after_s: float) -> Deadline:
    return Deadline(asyncio.get_running_loop().time() + after_s)
