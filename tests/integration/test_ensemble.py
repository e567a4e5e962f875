"""An ensemble on a real node, over the front door and over the fabric: a plan and then its times, as one request."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fabric.control import READY, UNAVAILABLE
from fabric.errors import ModelBroken, Unavailable
from fabric.local.control import NodeControl, control_path
from overspill import Router
from tests.integration.bad_node import collect
from tests.integration.frontdoors import code, config, given, grpc_client, running_front
from tests.integration.nodes import wait_until, write_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BUSY = 50
PLAN = """
import time
import numpy as np
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        stops = inputs["stops"]
        if len(stops) and stops.min() < 0: raise ValueError("a stop has a negative number")
        if len(stops) == 50: time.sleep(1.0)
        if len(stops) > 100: raise KeyError("too far")
        outputs["route"] = np.sort(stops)
"""
TIME = """
import numpy as np
class Model:
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        outputs["minutes"] = np.cumsum(inputs["x"] * inputs["speed"]).astype(np.float32)
        outputs["unit"] = np.array([b"min"], object)
"""
TIMES = """
backend: "python"
input [ { name: "x" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "speed" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "minutes" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "unit" data_type: TYPE_STRING dims: [ 1 ] } ]
"""
CHAIN = """
platform: "ensemble"
input [ { name: "orders" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "speed" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [
  { name: "way" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "eta" data_type: TYPE_FP32 dims: [ -1 ] },
  { name: "unit" data_type: TYPE_STRING dims: [ 1 ] }
]
ensemble_scheduling { step [
  { model_name: "plan" model_version: -1
    input_map { key: "stops" value: "orders" } output_map { key: "route" value: "way" } },
  { model_name: "time" model_version: -1
    input_map { key: "x" value: "way" } input_map { key: "speed" value: "speed" }
    output_map { key: "minutes" value: "eta" } output_map { key: "unit" value: "unit" } }
] }
"""
SPEED = np.array([0.5], np.float32)


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """An error that the test caught refers to its frame, and that to the router."""
    yield from collect()


def write_chain(models: Path) -> None:
    write_model(models, "plan", PLAN, config({"stops": "-1"}, {"route": "-1"}, "INT32"))
    write_model(models, "time", TIME, TIMES)
    (models / "chain" / "1").mkdir(parents=True)
    (models / "chain" / "config.pbtxt").write_text(CHAIN)


def asked(*orders: int) -> list[Any]:
    return [given("orders", np.array(orders, np.int32), "INT32"), given("speed", SPEED)]


def counts(client: Any, model: str) -> tuple[int, int]:
    (found,) = client.get_inference_statistics(model).model_stats
    return found.execution_count, found.inference_stats.fail.count


def test_two_models_as_one_that_come_and_go_only_so_that_it_can_run(tmp_path: Path) -> None:
    models, registry = tmp_path / "models", f"dir:{tmp_path}/registry"
    write_chain(models)
    words = ("--model-control", "explicit", "--load-model", "plan", "--registry", registry)
    with running_front(tmp_path, models, *words) as front, grpc_client(front.grpc) as client:
        control = NodeControl(control_path(front.node.path))
        with pytest.raises(ModelBroken, match="step 'time' is not loaded here; load that first"):
            control.load("chain")
        control.load("time")
        control.load("chain")
        wait_until(lambda: client.is_model_ready("chain"))
        infer_chain(client)
        inputs = {"orders": np.array([5, 4], np.int32), "speed": SPEED}
        with Router.connect(registry) as router, router.infer("chain", inputs, timeout_s=20.0) as reply:
            assert reply["way"].tolist() == [4, 5]
            assert reply["unit"].tolist() == [b"min"]
        with pytest.raises(Unavailable, match="'plan' is a step of ensemble 'chain'; unload that first"):
            control.unload("plan")
        (models / "time" / "config.pbtxt").write_text(TIMES.replace("TYPE_INT32", "TYPE_INT64"))
        with pytest.raises(ModelBroken, match=r"step of ensemble 'chain', and now .* takes INT64"):
            control.load("time")
        (models / "time" / "config.pbtxt").write_text(TIMES)
        (models / "time" / "1" / "model.py").write_text(TIME.replace('inputs["x"] *', 'inputs["x"] * 2 *'))
        control.load("time")  # a step that was loaded anew is the one that runs
        assert client.infer("chain", asked(1, 2)).as_numpy("eta").tolist() == [1.0, 3.0]
        client.unload_model("chain", unload_dependents=True)
        assert {each.state for each in control.index()} == {UNAVAILABLE}, "its steps went with it"
        for each in ("plan", "time"):
            control.load(each)
        with ThreadPoolExecutor(2) as pool:  # while an executor is busy, a load takes as long, and its steps may go
            busy = pool.submit(client.infer, "plan", [given("stops", np.arange(BUSY, dtype=np.int32), "INT32")])
            time.sleep(0.2)
            loads = pool.submit(control.load, "chain")
            time.sleep(0.2)
            with suppress(Unavailable):  # it was loaded all the same
                control.unload("plan")
            busy.result(timeout=30)
            with suppress(ModelBroken):
                loads.result(timeout=30)
        states = {each.name: each.state for each in control.index()}
        assert states["chain"] == states["plan"], "an ensemble serves with its steps or not at all"
        for each in ("chain", "plan"):
            control.unload(each)
        states = {each.name: each.state for each in control.index()}
        assert states == {"chain": UNAVAILABLE, "plan": UNAVAILABLE, "time": READY}


def infer_chain(client: Any) -> None:
    """Answers, errors and counts of the two as one."""
    result = client.infer("chain", asked(3, 1, 2))
    assert result.as_numpy("way").tolist() == [1, 2, 3]
    assert result.as_numpy("eta").tolist() == [0.5, 1.5, 3.0]
    assert result.as_numpy("unit").tolist() == [b"min"]
    assert client.get_model_metadata("chain").platform == "ensemble"
    told = client.get_model_config("chain").config
    assert [step.model_name for step in told.ensemble_scheduling.step] == ["plan", "time"]
    assert dict(told.ensemble_scheduling.step[1].input_map) == {"x": "way", "speed": "speed"}
    for large in (90, 60, 90):  # what goes between the steps has room for each, and none sees another's
        way = client.infer("chain", asked(*range(large, 0, -1))).as_numpy("way")
        assert way.tolist() == list(range(1, large + 1))
    assert code(lambda: client.infer("chain", asked(-1))) == "INVALID_ARGUMENT"
    assert code(lambda: client.infer("chain", asked(*range(200)))) == "INTERNAL"
    # Each step counts as a run of its own model; what failed in the first never reached the second.
    wait_until(lambda: counts(client, "plan") == (4, 2))
    assert counts(client, "time") == (4, 0)
    assert counts(client, "chain") == (4, 2)
