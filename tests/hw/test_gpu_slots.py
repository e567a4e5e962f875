"""Copies to the GPU from the slot that a request landed in: with its memory registered, and without."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import MissingDependency, ResourceExhausted
from overspill import Router
from tests.hw.gpu_models import copy_models
from tests.integration.bad_node import NodeProcess
from workers.cuda.nvml import Nvml
from workers.device import OverseerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hw.conftest import Report

pytestmark = [
    pytest.mark.hw,
    pytest.mark.timeout(300),
    pytest.mark.leaks("nodes and routers are closed by a fixture"),
]

FLOATS = 64 << 20  # 256 MiB
GOAL_GB_S = 50.0  # on an H200


@pytest.fixture(scope="module", autouse=True)
def card(report: Report) -> None:
    try:
        report.device = Nvml().cards()[0].model
    except (OverseerError, MissingDependency) as reason:
        pytest.skip(str(reason))


@pytest.fixture
def routers(tmp_path: Path) -> Iterator[list[tuple[Router, NodeProcess]]]:
    made: list[tuple[Router, NodeProcess]] = []
    yield made
    for router, node in made:
        router.close()
        node.end()


def start(tmp_path: Path, made: list[tuple[Router, NodeProcess]], name: str, extra: str) -> Router:
    folder = tmp_path / name
    folder.mkdir()
    copy_models(folder / "models")
    (folder / "node.toml").write_text(f'runtime_dir = "{folder}"\n{extra}')
    registry = f"dir:{folder / 'registry'}"
    words = ("--config", str(folder / "node.toml"))
    node = NodeProcess(folder, registry, folder / "models", *words, name=name, devices="cuda:0")
    node.wait_ready()
    made.append((Router.connect(registry), node))
    return made[-1][0]


def test_copies_from_slots(tmp_path: Path, report: Report, routers: list[tuple[Router, NodeProcess]]) -> None:
    figures: dict[str, float] = {}
    x = np.arange(FLOATS, dtype=np.float32)
    for name, extra in (("registered", ""), ("unregistered", "pinned_bytes_max = 1\n")):
        router = start(tmp_path, routers, name, extra)
        taken: list[float] = []
        for _ in range(5):
            with router.infer("carry", {"x": x}, timeout_s=30.0) as reply:
                taken.append(float(reply["h2d_ms"].min()))
        figures[f"{name}_gb_s"] = round(4 * FLOATS / 1e6 / min(taken), 2)
    report.add("slots", bytes=4 * FLOATS, **figures)
    if "H200" in report.device:
        assert figures["registered_gb_s"] >= GOAL_GB_S, figures


def test_a_request_that_does_not_fit_the_card_ends_alone(
    tmp_path: Path, routers: list[tuple[Router, NodeProcess]], report: Report
) -> None:
    """The next one that fits succeeds at once, in the same generation."""
    router = start(tmp_path, routers, "room", 'inject = "oom@gpu_once:every=2"\n')
    x = np.arange(1 << 20, dtype=np.float32)
    seen = set()
    for _ in range(50):
        with router.infer("gpu_once", {"x": x}, timeout_s=30.0) as reply:
            assert np.array_equal(reply["y"], 2 * x)
            seen.add(reply.trace.generation)
        with pytest.raises(ResourceExhausted, match="out of memory"):
            router.infer("gpu_once", {"x": x}, timeout_s=30.0)
    assert seen == {1}
    report.add("slots", out_of_memory_requests=50, generations=len(seen))
