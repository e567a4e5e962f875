"""Resident inputs over real nodes: sent once, referred to afterwards, sent once more where a node dropped them."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import InvalidArgument
from router import AsyncRouter, Router
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TABLE = np.arange(500_000, dtype=np.int32)[::-1].copy()
TIGHT = f"resident_bytes_max = {TABLE.nbytes + TABLE.nbytes // 2}\n"


@pytest.fixture(scope="module", params=["local,rpc", "rpc"])
def nodes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes")) as started:
        started.start("one", request.param, devices="cpu:2", settings=TIGHT)
        started.wait_ready("one")
        yield started


def asked(router: Router, table: object, at: int) -> None:
    places = np.arange(at, at + 100, dtype=np.int64)
    reply = router.infer("lookup", {"table": table, "at": places}, timeout_s=20)
    np.testing.assert_array_equal(reply["y"], TABLE[places])
    reply.close()


def test_a_resident_is_sent_once_and_the_answers_are_those_of_the_array(nodes: Nodes) -> None:
    with Router.connect(nodes.registry) as router:
        for at in range(20):
            asked(router, TABLE, at)
        each_time = router.statistics().bytes_sent
        table = router.resident(TABLE)
        for at in range(20):
            asked(router, table, at)
        statistics = router.statistics()
        assert (statistics.bytes_sent - each_time) * 10 <= each_time
        assert statistics.residents_sent == 1 + statistics.residents_missed
        # An executor that did not fill it may be asked first while the other still does: that costs one sending.
        assert statistics.residents_missed <= 1
    del router
    settle()


def test_a_node_that_dropped_a_resident_costs_one_sending_and_never_a_wrong_answer(nodes: Nodes) -> None:
    with Router.connect(nodes.registry) as router:
        tables = TABLE + 1, TABLE + 2  # both do not fit: one makes the node drop the other
        kept = [router.resident(table) for table in tables]
        for at in range(12):
            reply = router.infer("lookup", {"table": kept[at % 2], "at": np.array([at])}, timeout_s=20)
            assert reply["y"][0] == tables[at % 2][at]
        statistics = router.statistics()
        assert statistics.residents_missed >= 5
        assert statistics.residents_sent == 2 + statistics.residents_missed
        assert statistics.retries == 0, "that a node dropped it is no failure"
        del reply
    del router
    settle()


def test_a_wrong_name_is_refused_and_poisons_nobody(nodes: Nodes) -> None:
    with Router.connect(nodes.registry) as router, Router.connect(nodes.registry) as other:
        mine = TABLE + 5
        good, forged = other.resident(mine), router.resident(TABLE * 0)
        forged.digest = good.digest
        one = np.zeros(1, np.int64)
        with pytest.raises(InvalidArgument, match="another content"):
            router.infer("lookup", {"table": forged, "at": one}, timeout_s=20)
        for _ in range(2):
            assert other.infer("lookup", {"table": good, "at": one}, timeout_s=20)["y"][0] == mine[0]
        # The node has the true content now, unless others' residents filled it: then a forger reads its own bytes.
        assert router.infer("lookup", {"table": forged, "at": one}, timeout_s=20)["y"][0] in {mine[0], 0}
        assert other.infer("lookup", {"table": good, "at": one}, timeout_s=20)["y"][0] == mine[0]
        short = router.resident(TABLE[:10])
        short.digest = good.digest
        with pytest.raises(InvalidArgument, match="bytes"):
            router.infer("lookup", {"table": short, "at": one}, timeout_s=20)
    del router, other
    settle()


def test_a_resident_outlives_the_executors(nodes: Nodes) -> None:
    with Router.connect(nodes.registry) as router:
        table = router.resident(TABLE)
        asked(router, table, 0)
        before = router.statistics()
        nodes.kill_executors("one")
        for at in range(5):
            asked(router, table, at)
        after = router.statistics()
        # Whoever had not filled it yet when it was killed is the one that may lack it.
        assert after.residents_sent - before.residents_sent <= 1
    del router
    settle()


def test_residents_go_with_prepared_inputs_batches_and_the_asyncio_router(nodes: Nodes) -> None:
    with Router.connect(nodes.registry) as router:
        table = router.resident(TABLE)
        with router.prepare("lookup", at=(3,), table=table) as x:
            x["at"][:] = 1, 2, 3
            np.testing.assert_array_equal(x.infer(timeout_s=20)["y"], TABLE[1:4])
            x["at"][:] = 7, 8, 9
            np.testing.assert_array_equal(x.infer(timeout_s=20)["y"], TABLE[7:10])
            with pytest.raises(InvalidArgument, match="at"):
                x["table"]
        places = np.arange(1000, dtype=np.int64)
        mapped = router.map("lookup", {"at": places}, shared={"table": table}, timeout_s=20)
        np.testing.assert_array_equal(mapped["y"], TABLE[:1000])
        assert router.statistics().residents_sent <= 2
    del router, mapped, x

    async def main() -> None:
        async with AsyncRouter.connect(nodes.registry) as router:
            table = await router.resident(TABLE)
            replies = await asyncio.gather(
                *(router.infer("lookup", {"table": table, "at": places[n : n + 5]}, timeout_s=20) for n in range(9))
            )
            assert [int(reply["y"][0]) for reply in replies] == [int(TABLE[n]) for n in range(9)]
            mapped = await router.map("lookup", {"at": places}, shared={"table": table}, timeout_s=20)
            np.testing.assert_array_equal(mapped["y"], TABLE[:1000])

    asyncio.run(main())
    settle()


@pytest.mark.long
def test_many_clients_and_residents_under_a_small_budget_get_right_answers_only(tmp_path: Path) -> None:
    with Nodes(tmp_path) as nodes:
        for name, wires in (("near", "local,rpc"), ("far", "rpc")):
            nodes.start(name, wires, devices="cpu:2", settings=TIGHT)
        nodes.wait_ready("near", "far")
        with Router.connect(nodes.registry) as first, Router.connect(nodes.registry) as second:
            end_s, rng = time.monotonic() + 30.0, np.random.default_rng(5)
            tables = [TABLE + number for number in range(4)]
            kept = [[router.resident(table) for table in tables] for router in (first, second)]
            while time.monotonic() < end_s:
                who, which, at = int(rng.integers(2)), int(rng.integers(4)), int(rng.integers(len(TABLE)))
                inputs = {"table": kept[who][which], "at": np.array([at])}
                reply = (first, second)[who].infer("lookup", inputs, timeout_s=20)
                assert reply["y"][0] == tables[which][at]
                reply.close()
            assert first.statistics().residents_missed
            assert first.statistics().active == 0
        del first, second, reply
        settle()
