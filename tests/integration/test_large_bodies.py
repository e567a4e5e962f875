"""Bodies of a hundred megabytes and more, against a real node: what fits, what is refused, and what a refusal leaves.

Errors are kept and the garbage collector is off, so that memory comes back by what the code does or not at all.
"""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.errors import ArenaFull, Fate, OverspillError
from overspill import AsyncRouter, Router, RouterConfig
from tests.integration.bad_node import NodeProcess, copy_models
from tests.integration.router_nodes import settle

if TYPE_CHECKING:
    from collections.abc import Iterator

ROUNDS = 50
SMALL = RouterConfig(arena_bytes=4 << 20)
"""Holds 1 MiB each way, beside the small slots; not 2 MiB each way."""
NO_ROOM_TO_STAGE = np.ones(600_000, np.float32)
NO_ROOM_TO_ANSWER = np.ones(500_000, np.float32)
GOOD = np.ones(250_000, np.float32)
FREE_BYTES = 2 << 30
"""What a 300 MB reply takes: the model's own copy, the slot it is fetched into, and some for everybody else."""


def _available_bytes() -> int:
    with Path("/proc/meminfo").open(encoding="ascii") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("large")
    models = copy_models(folder / "models", "double", "big")
    config = models / "big" / "config.pbtxt"
    config.write_text(
        f'{config.read_text()}\nparameters {{ key: "idempotent" value {{ string_value: "true" }} }}\n', encoding="utf-8"
    )
    with NodeProcess(folder, f"dir:{folder / 'registry'}", models, wires="local") as node:
        node.wait_ready()
        yield node.registry


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    gc.collect()


def _lent_bytes(router: Router | AsyncRouter) -> int:
    arena = router._core._shared_arena()
    assert arena is not None
    return arena.lent_bytes()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("keep", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize(
    ("model", "inputs", "fate"),
    [
        ("double", {"x": NO_ROOM_TO_STAGE}, Fate.NEVER_RAN),
        ("double", {"x": NO_ROOM_TO_ANSWER}, Fate.NEVER_RAN),  # a reply is expected to be as large as it was before
        ("big", {"n": np.array([8 << 20])}, Fate.RAN),
    ],
    ids=["staging", "place", "reply"],
)
def test_failed_large_calls_leave_nothing_behind(
    registry: str, model: str, inputs: dict[str, np.ndarray[Any, Any]], fate: Fate, *, keep: bool
) -> None:
    kept: list[OverspillError] = []
    with Router.connect(registry, config=SMALL) as router:
        router.infer("double", {"x": GOOD[:4]}, timeout_s=10)
        before = _lent_bytes(router)
        for _ in range(ROUNDS):
            error = _refusal(router, model, inputs)
            assert error.fate is fate
            if keep:
                kept.append(error)
            del error
            assert _lent_bytes(router) == before
        reply = router.infer("double", {"x": GOOD}, timeout_s=10)
        np.testing.assert_array_equal(reply["y"], 2 * GOOD)
        assert router.infer("big", {"n": np.array([9])}, timeout_s=10)["y"].shape == (9,)
    del router, reply
    kept.clear()
    settle()


def _refusal(router: Router, model: str, inputs: dict[str, np.ndarray[Any, Any]]) -> ArenaFull:
    try:
        router.infer(model, inputs, timeout_s=10)
    except ArenaFull as error:
        _check_told(str(error))
        return error
    pytest.fail("the arena is too small for this")


def _check_told(sentence: str) -> None:
    assert "raise RouterConfig.arena_bytes" in sentence
    assert "close" not in sentence, "nobody holds a reply"
    assert "attempts" not in sentence, "it is not sent again"


@pytest.mark.usefixtures("no_collector")
def test_failed_large_calls_leave_nothing_behind_when_awaited(registry: str) -> None:
    async def use() -> None:
        async with AsyncRouter.connect(registry, config=SMALL) as router:
            await router.infer("double", {"x": GOOD[:4]}, timeout_s=10)
            before = _lent_bytes(router)
            for _ in range(ROUNDS):
                with pytest.raises(ArenaFull):
                    await router.infer("double", {"x": NO_ROOM_TO_STAGE}, timeout_s=10)
                assert _lent_bytes(router) == before
            reply = await router.infer("double", {"x": GOOD}, timeout_s=10)
            np.testing.assert_array_equal(reply["y"], 2 * GOOD)

    asyncio.run(use())
    settle()


def test_a_reply_without_room_ran_and_is_not_run_again(registry: str) -> None:
    with Router.connect(registry, config=SMALL) as router:
        with pytest.raises(ArenaFull, match="its reply finds no room") as refused:
            router.infer("big", {"n": np.array([8 << 20])}, timeout_s=10)
        assert refused.value.fate is Fate.RAN
        _check_told(str(refused.value))
    del router, refused
    settle()


def test_the_node_s_own_limit_is_named_where_it_is_the_smaller(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_text(f"arena_bytes_max = {4 << 20}\n", encoding="utf-8")
    models = copy_models(tmp_path / "models", "double")
    with NodeProcess(tmp_path, f"dir:{tmp_path / 'registry'}", models, "--config", str(tmp_path / "node.toml")) as node:
        node.wait_ready()
        with (
            Router.connect(node.registry) as router,
            pytest.raises(ArenaFull, match="raise arena_bytes_max in"),
        ):
            router.infer("double", {"x": np.ones(2 << 20, np.float32)}, timeout_s=10)
    del router
    settle()


@pytest.mark.skipif(_available_bytes() < FREE_BYTES, reason="less than 2 GiB of memory are free")
def test_large_replies_come_at_the_first_call(registry: str) -> None:
    with Router.connect(registry) as router:
        x = np.ones(25_000_000, np.float32)
        with router.infer("double", {"x": x}, timeout_s=60) as reply:
            assert (reply["y"] == 2.0).all()
            assert reply.trace.attempts == 1
        del x
        with router.infer("big", {"n": np.array([300_000_000])}, timeout_s=60) as reply:
            assert reply["y"].shape == (300_000_000,)
            assert reply["y"][-1] == 7
            assert reply.trace.attempts == 1
    del router, reply
    settle()
