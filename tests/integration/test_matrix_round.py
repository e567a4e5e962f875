"""A dispatch round in matrix mode: its tables go to each node once, and every answer is that of a single process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from examples.dispatch import models as shipped_models
from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.city.rounds import with_shared_matrices
from examples.dispatch.route_plan import Solver, warm_up
from examples.dispatch.route_plan.contract import Options
from router import Router
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from examples.dispatch.city.rounds import Shard

PLAN = CityPlan(seed=7, orders=160, riders=400, near=16, areas=40, options=Options(solver=Solver.INSERT))


def send(router: Router, shards: list[Shard], *, resident: bool) -> int:
    """Sends all shards; gives the bytes that took. Each answer is compared with the single process's."""
    before = router.statistics().bytes_sent
    tables = {name: getattr(shards[0].batch, name) for name in ("seconds", "metres")}
    given = {name: router.resident(table) if resident else table for name, table in tables.items()}
    for shard in shards:
        reply = router.infer("route_plan", {**shard.tensors(), **given}, timeout_s=60)
        for name, array in shard.reference().tensors().items():
            assert reply[name].tobytes() == array.tobytes(), name
        reply.close()
    return router.statistics().bytes_sent - before


@pytest.mark.timeout(300)
def test_tables_of_a_round_are_sent_once_to_each_node_and_the_answers_are_equal(tmp_path: Path) -> None:
    warm_up()  # compiles the kernels once, before the executors look for them
    models = tmp_path / "shipped"
    models.mkdir()
    (models / "route_plan").symlink_to(Path(shipped_models.__file__).parent / "route_plan")
    shards = with_shared_matrices(list(city_round(PLAN).shards()))
    assert len(shards) >= 30
    with Nodes(tmp_path) as nodes:
        nodes.models = models
        nodes.start("near")
        nodes.start("far", "rpc")
        nodes.wait_ready("near", "far", timeout_s=90.0)
        with Router.connect(nodes.registry) as router:
            each_time = send(router, shards, resident=False)
            once = send(router, shards, resident=True)
            statistics = router.statistics()
        assert statistics.residents_missed == 0
        assert once * 10 <= each_time, (once, each_time)
    del router
    settle()
