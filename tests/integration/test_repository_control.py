"""Models that come and go while a node serves: loaded, loaded anew, refused, unloaded, and what is told of them."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from discovery.registry import open_registry
from fabric.control import LOADING, READY, UNAVAILABLE
from fabric.errors import InvalidArgument, ModelBroken, OverspillError, Unavailable, UnknownModel
from fabric.local.control import NodeControl, control_path
from tests.integration.nodes import (
    CONFIG,
    IDEMPOTENT,
    SLEEP,
    VALUE_ERROR,
    Client,
    client_of,
    fails,
    rough_models,
    running_node,
    wait_until,
    write_model,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.nodes import RunningNode

EXPLICIT = ("--model-control", "explicit")
TIMES = """
import time
class Model:
    def __init__(self, config):
        time.sleep({sleep_s})
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"] * {factor}
"""
DIES = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"


def write_version(models: Path, name: str, version: int, code: str) -> None:
    """Adds a version to a model."""
    folder = models / name / str(version)
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(code)
    (models / name / "config.pbtxt").write_text(CONFIG + IDEMPOTENT)


def times(factor: int, sleep_s: float = 0.0) -> str:
    """A model that multiplies, and takes some time to load."""
    return TIMES.format(factor=factor, sleep_s=sleep_s)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with `times`, version 1."""
    folder = tmp_path / "models"
    write_version(folder, "times", 1, times(2))
    return folder


@pytest.fixture
def node(tmp_path: Path, models: Path) -> Iterator[RunningNode]:
    """A node of two executors that has `times` loaded."""
    registry = f"dir:{tmp_path}/registry"
    words = ("--registry", registry, "--devices", "cpu:2", *EXPLICIT, "--load-model", "times")
    with running_node(tmp_path, models, *words) as running:
        yield running


@pytest.fixture
def control(node: RunningNode) -> NodeControl:
    """Its control socket."""
    return NodeControl(control_path(node.path))


def states(control: NodeControl) -> list[tuple[str, str, str]]:
    """The index without reasons."""
    return [(each.name, each.version, each.state) for each in control.index()]


class Caller:  # mutable: counts what it got
    """Calls a model without pause, from a thread, and keeps each distinct answer and every failure."""

    def __init__(self, node: RunningNode, model: str) -> None:
        self.answers: list[int] = []
        self.failures: list[OverspillError] = []
        self._over = threading.Event()
        self._client = Client(node.path, time.monotonic_ns())
        self._thread = threading.Thread(target=self._run, args=(model,))
        self._thread.start()

    def _run(self, model: str) -> None:
        while not self._over.is_set():
            try:
                answer = self._client.call(model, 3)[0]
            except OverspillError as error:
                self.failures.append(error.with_traceback(None))
                continue
            if answer not in self.answers:
                self.answers.append(answer)

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30.0)
        self._client.close()


def test_a_new_version_serves_once_it_is_warm_and_no_request_fails_meanwhile(
    node: RunningNode, control: NodeControl, models: Path
) -> None:
    caller = Caller(node, "times")
    try:
        wait_until(lambda: caller.answers == [6])
        write_version(models, "times", 2, times(5, sleep_s=0.5))
        loading = threading.Thread(target=control.load, args=("times",))
        loading.start()
        wait_until(lambda: ("times", "2", LOADING) in states(control))
        assert ("times", "1", READY) in states(control)
        loading.join(30.0)
        wait_until(lambda: caller.answers == [6, 15])
        assert states(control) == [("times", "2", READY)]
    finally:
        caller.stop()
    assert caller.failures == []


def test_a_load_that_fails_leaves_what_served_and_the_index_says_why(
    node: RunningNode, control: NodeControl, models: Path
) -> None:
    write_version(models, "times", 2, "1 / 0")
    with pytest.raises(ModelBroken, match="ZeroDivisionError"):
        control.load("times")
    old, new = control.index()
    assert (old.version, old.state, old.reason) == ("1", READY, "")
    assert (new.version, new.state) == ("2", UNAVAILABLE)
    assert "ZeroDivisionError" in new.reason
    with client_of(node) as client:
        assert client.call("times", 3, 4) == [6, 8]


def test_a_load_that_ends_an_executor_fails_and_the_node_serves_on(
    node: RunningNode, control: NodeControl, models: Path
) -> None:
    write_version(models, "times", 2, DIES)
    with pytest.raises(ModelBroken, match="signal 9"):
        control.load("times")
    with client_of(node) as client:
        wait_until(lambda: len(node.children()) == 2)
        assert client.call("times", 3, 4) == [6, 8]
    assert (control.index()[0].version, control.index()[0].state) == ("1", READY)


def test_an_executor_that_starts_anew_loads_what_served_and_not_what_lies_there(
    node: RunningNode, control: NodeControl, models: Path
) -> None:
    write_version(models, "times", 2, times(7))
    before = node.children()
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    with client_of(node) as client:
        wait_until(lambda: not set(before) & set(node.children()) and node.state == "ready")
        assert client.call("times", 3, 4) == [6, 8]
    control.load("times")
    with client_of(node, 8) as client:
        assert client.call("times", 3, 4) == [21, 28]


def test_an_unloaded_model_is_unknown_at_once_and_can_come_again(
    node: RunningNode, control: NodeControl, models: Path, tmp_path: Path
) -> None:
    def published() -> str:
        (instance,) = open_registry(f"dir:{tmp_path}/registry").read()
        return next((model.state for model in instance.models if model.name == "times" and model.refused), "")

    with client_of(node) as client:
        control.unload("times")
        assert isinstance(fails(client, "times", 3)[0], UnknownModel)
        assert states(control) == [("times", "1", UNAVAILABLE)]
        assert control.statistics() == ()
        wait_until(lambda: published() == "unloaded")
        control.unload("times")  # as in Triton, it is no fault to say so twice
        control.load("times")
        assert client.call("times", 3, 4) == [6, 8]
        wait_until(lambda: published() == "")
    write_version(models, "more", 1, times(9))
    assert ("more", "1", UNAVAILABLE) in states(control)
    control.load("more")
    with client_of(node, 9) as client:
        assert client.call("more", 3, 4) == [27, 36]


def test_a_load_tells_of_fields_without_effect(node: RunningNode, control: NodeControl, models: Path) -> None:
    with (models / "times" / "config.pbtxt").open("a") as written:
        written.write('\nsequence_batching { }\nparameters { key: "idempotnt" value { string_value: "true" } }\n')
    assert "changes nothing" not in node.log.read_text()
    control.load("times")
    log = node.log.read_text()
    assert "field 'sequence_batching' is not used here and changes nothing" in log
    assert "did you mean 'idempotent'?" in log


def test_a_configuration_may_come_with_the_load(node: RunningNode, control: NodeControl) -> None:
    config = json.loads(control.config("times"))
    assert (config["name"], config["backend"], config["input"][0]["dims"]) == ("times", "python", [-1])
    config["parameters"]["idempotent"]["string_value"] = "false"
    config["max_batch_size"], config["input"][0]["dims"], config["output"][0]["dims"] = 4, [], []
    control.load("times", json.dumps(config))
    assert json.loads(control.config("times"))["max_batch_size"] == 4
    with client_of(node) as client:
        assert client.call("times", 3, 4) == [6, 8]
        assert isinstance(fails(client, "times", 1, 2, 3, 4, 5)[0], InvalidArgument)
    with pytest.raises(ModelBroken, match="JSON"):
        control.load("times", "{")
    with pytest.raises(ModelBroken, match="backend"):
        control.load("times", '{"backend": "nonesuch"}')


@pytest.mark.parametrize("name", ["nonesuch", "../models/times", ".", "", "a\0b", "x" * 300])
def test_what_is_not_in_the_repository_cannot_be_loaded(control: NodeControl, name: str) -> None:
    with pytest.raises(UnknownModel):
        control.load(name)
    with pytest.raises(UnknownModel):
        control.unload(name)
    with pytest.raises(UnknownModel):
        control.config(name)
    assert states(control) == [("times", "1", READY)]


def test_models_are_fixed_unless_the_operator_says_otherwise(tmp_path: Path) -> None:
    models = rough_models(tmp_path)
    write_model(models, "broken", "1 / 0")
    with running_node(tmp_path, models) as node, client_of(node) as client:
        control = NodeControl(control_path(node.path))
        with pytest.raises(Unavailable, match="--model-control explicit"):
            control.load("rough")
        with pytest.raises(Unavailable, match="--model-control explicit"):
            control.unload("rough")
        index = {each.name: each for each in control.index()}
        assert (index["rough"].state, index["broken"].state) == (READY, UNAVAILABLE)
        assert "ZeroDivisionError" in index["broken"].reason
        for number in range(3):
            client.call("rough", SLEEP, number)
        fails(client, "rough", VALUE_ERROR, 0)
        # A caller has its answer a moment before the node has counted it.
        wait_until(lambda: control.statistics("rough")[0].fail.count == 1)
        (seen,) = control.statistics("rough")
        assert (seen.version, seen.inference_count, seen.execution_count) == ("1", 3, 3)
        assert (seen.success.count, seen.fail.count, seen.failures) == (3, 1, (("BACKEND", 1),))
        parts = seen.queue.ns + seen.compute_input.ns + seen.compute_infer.ns + seen.compute_output.ns
        assert 3_000_000 <= seen.compute_infer.ns <= parts <= seen.success.ns
        assert [(batch.batch_size, batch.compute_infer.count) for batch in seen.batches] == [(1, 3)]
        assert abs(seen.last_inference_ms / 1000 - time.time()) < 60
        with pytest.raises(UnknownModel, match="version 1 serves"):
            control.statistics("rough", "7")
        assert {each.name for each in control.statistics()} == {"rough", "ledger"}
