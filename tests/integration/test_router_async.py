"""The asyncio router over real nodes: the same answers, and cancelled awaits that leave nothing behind."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import InvalidArgument, RouterClosed
from router import AsyncRouter
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes")) as started:
        started.start("near")
        started.start("far", "rpc")
        started.wait_ready("near", "far")
        yield started


X = np.arange(8, dtype=np.float32).reshape(2, 4)


def test_asyncio_infers_prepares_and_closes(nodes: Nodes) -> None:
    async def use() -> None:
        async with AsyncRouter.connect(nodes.registry) as router:
            replies = await asyncio.gather(*(router.infer("echo", {"x": X + n}, timeout_s=10) for n in range(100)))
            for n, reply in enumerate(replies):
                np.testing.assert_array_equal(reply["y"], X + n + 1)
            with router.prepare("echo", rows=20_000) as x:
                x["x"][:] = 4
                assert ((await x.infer(10))["y"] == 5).all()
            assert router.models() == ("echo", "ledger", "lookup", "slow", "strings")
            with pytest.raises(InvalidArgument):
                await router.infer("echo", {"z": X}, timeout_s=1)
        with pytest.raises(RouterClosed):
            await router.infer("echo", {"x": X}, timeout_s=1)
        other = await AsyncRouter.connect(nodes.registry)
        await other.close()

    asyncio.run(use())
    settle()


def test_a_storm_of_cancelled_awaits_leaves_nothing_behind(nodes: Nodes) -> None:
    async def storm() -> None:
        async with AsyncRouter.connect(nodes.registry) as router:
            rng = np.random.default_rng(3)
            for _ in range(10):
                inputs = {"id": np.array([9]), "ms": np.array([3])}
                tasks = [
                    asyncio.ensure_future(
                        router.infer("slow", inputs, timeout_s=20)
                        if n % 3
                        else router.infer("echo", {"x": np.zeros((40_000, 4), np.float32)}, timeout_s=20)
                    )
                    for n in range(30)
                ]
                for task in tasks:
                    if rng.random() < 0.7:
                        await asyncio.sleep(rng.random() * 0.002)
                        task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
            end_s = time.monotonic() + 20
            while router.statistics().active:
                assert time.monotonic() < end_s
                await asyncio.sleep(0.01)
            np.testing.assert_array_equal((await router.infer("echo", {"x": X}, timeout_s=10))["y"], X + 1)
            assert all("0 ours out, 0 unseen" in line for line in router.statistics().workers)

    asyncio.run(storm())
    settle()
