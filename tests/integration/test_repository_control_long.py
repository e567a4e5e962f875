"""Models loaded, replaced, refused and unloaded many times over: memory returns, and nothing gets slower for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabric.errors import ModelBroken
from fabric.local.control import NodeControl, control_path
from tests.integration.nodes import CONFIG, IDEMPOTENT, Client, running_node, write_model

HEAVY = """
import numpy as np
class Model:
    def __init__(self, config):
        self.weights = np.ones(4 << 20)
        self.me = self
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"]
"""
SMALL = """
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"]
"""


def resident_bytes(pid: int) -> int:
    """What a process has in memory by the kernel's word."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def call_us(client: Client, pids: tuple[int, ...], count: int) -> float:
    """What a call costs node and executor in processor time, which neighbours of the machine do not change."""
    before = sum(processor_ns(pid) for pid in pids)
    for _ in range(count):
        client.call("small", 1, 2)
    return (sum(processor_ns(pid) for pid in pids) - before) / count / 1000


def processor_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def turn(control: NodeControl) -> None:
    """One of everything that can happen to a model."""
    control.load("heavy")
    control.load("heavy")
    control.load("small")
    with pytest.raises(ModelBroken):
        control.load("broken")
    control.unload("heavy")


def come_and_go(tmp_path: Path, times: int) -> tuple[list[float], list[float], float, float]:
    """The resident bytes of node and executor before and after, and what a call cost them then."""
    models = tmp_path / "models"
    write_model(models, "heavy", HEAVY, CONFIG)
    write_model(models, "small", SMALL, CONFIG + IDEMPOTENT)
    write_model(models, "broken", "import numpy\nweights = numpy.ones(4 << 20)\n1 / 0", CONFIG)
    words = ("--model-control", "explicit", "--load-model", "small")
    with running_node(tmp_path, models, *words) as node:
        control = NodeControl(control_path(node.path))
        client = Client(node.path)
        for _ in range(5):
            turn(control)
        (executor,) = node.children()
        pids = node.process.pid, executor
        calls = 2000 if times >= 100 else 200
        for _ in range(3):  # until the node keeps as many answers as it ever does
            before_us = call_us(client, pids, calls)
        fds = [descriptors(pid) for pid in pids]
        before = [float(resident_bytes(pid)) for pid in pids]
        for _ in range(times):
            turn(control)
        after_us = call_us(client, pids, calls)  # and the executor has let go what it was told to
        after = [float(resident_bytes(pid)) for pid in pids]
        assert [descriptors(pid) for pid in pids] == fds
        assert node.children() == [executor]
        client.close()
    return before, after, before_us, after_us


def test_memory_returns_when_models_come_and_go(tmp_path: Path) -> None:
    before, after, _, _ = come_and_go(tmp_path, 8)
    for then, now in zip(before, after, strict=True):
        assert now <= then + (24 << 20)  # a model that stayed would be 32 MiB each time


@pytest.mark.long
def test_memory_is_flat_and_calls_are_as_fast_after_two_hundred_loads_and_failures(tmp_path: Path) -> None:
    before, after, before_us, after_us = come_and_go(tmp_path, 200)
    for then, now in zip(before, after, strict=True):
        assert now <= 1.02 * then
    assert after_us <= 1.3 * before_us  # whether a wake-up is found by looking or by sleeping costs that much


@pytest.mark.long
def test_a_thousand_reloads_cost_a_request_nothing(tmp_path: Path) -> None:
    """R30. The least of some batches is what a call costs: a neighbour of the machine only ever adds to it."""
    write_model(tmp_path / "models", "small", SMALL, CONFIG + IDEMPOTENT)
    words = ("--model-control", "explicit", "--load-model", "small")
    with running_node(tmp_path, tmp_path / "models", *words) as node:
        control, client = NodeControl(control_path(node.path)), Client(node.path)
        pids = node.process.pid, *node.children()
        call_us(client, pids, 4000)  # until the node keeps as many answers as it ever does
        before_us = min(call_us(client, pids, 500) for _ in range(10))
        for _ in range(1000):
            control.load("small")
        after_us = min(call_us(client, pids, 500) for _ in range(10))
        assert (node.process.pid, *node.children()) == pids
        client.close()
    assert after_us <= 1.1 * before_us, (before_us, after_us)
