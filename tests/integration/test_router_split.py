"""A batch over real nodes: its rows come back in order, from both; and the decisions behind them are told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import InvalidArgument, UnknownModel
from overspill.cli import main
from router import Router, RouterConfig
from tests.integration.router_nodes import Nodes, settle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with Nodes(tmp_path_factory.mktemp("nodes")) as started:
        started.start("near")
        started.start("far", "rpc")
        started.wait_ready("near", "far")
        yield started


def test_a_batch_is_split_and_comes_back_in_order(nodes: Nodes) -> None:
    x = np.arange(40_000, dtype=np.float32).reshape(10_000, 4)
    with Router.connect(nodes.registry) as router:
        for _ in range(3):
            mapped = router.map("echo", {"x": x}, timeout_s=30)
            np.testing.assert_array_equal(mapped["y"], x + 1)
        assert len(mapped.traces) > 1
        assert list(mapped) == ["y"]
        assert len({trace.request_id for trace in mapped.traces}) == len(mapped.traces)
        with pytest.raises(InvalidArgument, match="rows"):
            router.map("echo", {"x": x, "z": x[:3]}, timeout_s=5)
        with pytest.raises(InvalidArgument, match="give it once"):
            router.map("echo", {"x": x}, shared={"x": x}, timeout_s=5)
        with pytest.raises(UnknownModel):
            router.map("nothing", {"x": x}, timeout_s=5)
        assert router.statistics().active == 0
    del router, mapped
    settle()


def test_a_request_is_explained_from_memory_and_from_the_file(
    nodes: Nodes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "decisions.jsonl"
    config = RouterConfig(explain_kept=100, explain_file=str(file))
    with Router.connect(nodes.registry, config=config) as router:
        for rows in (1, 2, 3):
            reply = router.infer("echo", {"x": np.zeros((rows, 4), np.float32)}, timeout_s=10, cost=float(rows))
        trace = reply.trace
        (decision,) = router.explain(trace.request_id)
        assert (decision.picked, decision.model) == (trace.worker, "echo")
        end_s = time.monotonic() + 10.0
        while not (file.exists() and trace.request_id in file.read_text()):
            assert time.monotonic() < end_s, "the decision was never written"
            time.sleep(0.02)
    assert main(["explain", trace.request_id, "--file", str(file)]) == 0
    assert trace.worker in capsys.readouterr().out
    del router, reply
    settle()
