"""The asyncio router over real nodes: the same answers, and cancelled awaits that leave nothing behind."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import InvalidArgument, RouterClosed
from fabric.link.link import Link
from fabric.local.channel import LocalChannel
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


def local_channel(router: AsyncRouter) -> tuple[Link, LocalChannel]:
    """Of the one worker that is reached over shared memory."""
    with router._core.lock:
        links = [worker.link for worker in router._core.table.workers]
    found = [(link, link._wiring.current) for link in links if isinstance(link, Link)]
    ((link, channel),) = [(link, each) for link, each in found if isinstance(each, LocalChannel)]
    return link, channel


async def until_served(router: AsyncRouter) -> LocalChannel:
    """Asks until the running loop has a socket of its own."""
    _, channel = local_channel(router)
    end_s = time.monotonic() + 20.0
    while not channel.serves(asyncio.get_running_loop()):
        assert time.monotonic() < end_s, "the loop got no socket"
        (await router.infer("echo", {"x": X}, timeout_s=10)).close()
    return channel


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("alone")) as started:
        started.start("alone", "local,rpc")
        started.wait_ready("alone")
        yield started


async def ask_and_leave(router: AsyncRouter, count: int) -> None:
    """Sends for itself, and leaves a call behind that `asyncio.run` cancels."""
    await until_served(router)
    for n in range(count):
        replies = await asyncio.gather(
            router.infer("echo", {"x": X + n}, timeout_s=10),
            router.infer("echo", {"x": np.full((40_000, 4), X[0, 0] + n, np.float32)}, timeout_s=10),
        )
        for reply in replies:
            assert reply["y"].flat[0] == n + 1
            reply.close()
    slow = router.infer("slow", {"id": np.array([99]), "ms": np.array([200])}, timeout_s=20)
    left = asyncio.ensure_future(slow)
    await asyncio.sleep(0.01)
    assert left


def test_loops_that_come_and_go_send_for_themselves(alone: Nodes) -> None:
    """One router, ten loops one after the other and two at once, each with a call that it leaves behind."""

    async def connect() -> AsyncRouter:
        return await AsyncRouter.connect(alone.registry)

    def use() -> None:
        router = asyncio.run(connect())
        try:
            for _ in range(10):
                asyncio.run(ask_and_leave(router, 3))
            threads = [threading.Thread(target=asyncio.run, args=(ask_and_leave(router, 20),)) for _ in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            _, channel = local_channel(router)
            end_s = time.monotonic() + 20.0
            while channel._loops.all or channel.zombies or router.statistics().active:
                assert time.monotonic() < end_s, "a loop that was closed keeps its socket, or its call its slots"
                time.sleep(0.02)
        finally:
            asyncio.run(router.close())

    use()
    settle()


def test_a_call_of_a_loop_moves_when_its_wire_dies(alone: Nodes) -> None:
    """The wire is broken under five of them: each goes on over rpc with its id, and runs once."""

    async def use() -> None:
        async with AsyncRouter.connect(alone.registry) as router:
            await until_served(router)
            link, channel = local_channel(router)
            running = [
                asyncio.ensure_future(
                    router.infer("slow", {"id": np.array([number]), "ms": np.array([40])}, timeout_s=30)
                )
                for number in range(5)
            ]
            await asyncio.sleep(0.06)
            channel.abort("the test breaks it")
            for reply in await asyncio.gather(*running):
                reply.close()
            assert link.statistics().moved > 0

    asyncio.run(use())
    ran = alone.notes("slow")
    assert [ran[number] for number in range(5)] == [1] * 5
    settle()
