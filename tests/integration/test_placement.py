"""Where a node puts its models and their requests: by instances, by bytes, by what they require, and by speed."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest

from discovery.registry import open_registry
from fabric.control import READY, UNAVAILABLE
from fabric.errors import ModelBroken, ResourceExhausted
from fabric.local.control import NodeControl, control_path
from tests.integration.nodes import (
    CONFIG,
    OK,
    Client,
    client_of,
    fails,
    running_node,
    wait_until,
    write_model,
)

if TYPE_CHECKING:
    from pathlib import Path

WHO = """
import os
class Model:
    def __init__(self, config):
        pass
    def warm_up(self):
        pass
    def execute(self, inputs, outputs):
        outputs["y"] = inputs["x"] * 0 + os.getpid()
"""
WARM = """
import time
class Model:
    def __init__(self, config):
        self.cold = True
    def execute(self, inputs, outputs):
        if self.cold:
            time.sleep(0.5)
        self.cold = False
        outputs["y"] = inputs["x"]
"""
SAMPLE = 'model_warmup { name: "s" inputs { key: "x" value { data_type: TYPE_INT64 dims: [ 2 ] zero_data: true } } }\n'


def parameter(key: str, value: str) -> str:
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'


def test_instances_bytes_and_kinds(tmp_path: Path) -> None:
    models, registry = tmp_path / "models", f"dir:{tmp_path}/registry"
    write_model(models, "one", WHO, CONFIG + "instance_group { count: 1 kind: KIND_CPU }\n")
    write_model(models, "two", WHO, CONFIG + "instance_group { count: 2 }\n")
    write_model(models, "all", WHO, CONFIG + parameter("memory_bytes", "64MiB"))
    write_model(models, "gpu", WHO, CONFIG + parameter("requires", "gpu, memory>=40GiB"))
    write_model(models, "kind", WHO, CONFIG + "instance_group { kind: KIND_GPU }\n")
    write_model(models, "big", WHO, CONFIG + parameter("memory_bytes", "100MiB"))
    (tmp_path / "node.toml").write_text(f"model_bytes_max = {512 << 20}\n")
    words = ("--devices", "cpu:3", "--registry", registry, "--config", str(tmp_path / "node.toml"))
    words += ("--model-control", "explicit", *(word for name in ("one", "two", "all", "gpu", "kind") for word in
                                               ("--load-model", name)))  # fmt: skip
    with running_node(tmp_path, models, *words) as node, client_of(node) as client:
        wait_until(lambda: len(node.children()) == 3)
        control = NodeControl(control_path(node.path))

        def pids(model: str, most: int) -> set[int]:
            found: set[int] = set()
            clients = [Client(node.path, time.monotonic_ns()) for _ in range(6)]
            give_up_s = time.monotonic() + (10.0 if most > 1 else 0.5)

            def ask(own: Client) -> None:
                while len(found) < most + 1 and time.monotonic() < give_up_s:
                    found.add(own.call(model, OK, 0)[0])

            threads = [threading.Thread(target=ask, args=(own,)) for own in clients]
            for thread in threads:
                thread.start()
            time.sleep(0.5)
            give_up_s = min(give_up_s, time.monotonic() + 0.5)
            for thread in threads:
                thread.join(20.0)
            for own in clients:
                own.close()
            return found

        assert len(pids("one", 1)) == 1
        assert len(pids("two", 2)) <= 2
        for model, says in (("gpu", "requires gpu"), ("kind", "KIND_GPU")):
            error, _ = fails(client, model, OK, 0)
            assert isinstance(error, ModelBroken)
            assert says in str(error)
        # Three instances of 64 MiB are counted with 192 MiB, and three of 100 MiB do not go beside them twice.
        control.load("big")
        with pytest.raises(ResourceExhausted, match=r"needs 100\.0 MiB for each of 3 instances; 20\.\d MiB are left"):
            control.load("big")  # the old one stays until the new one is warm, so both count
        index = {each.name: each for each in control.index()}
        assert (index["big"].state, index["gpu"].state) == (READY, UNAVAILABLE)
        assert "are left" in index["big"].reason
        control.unload("big")
        control.load("big")
        (instance,) = open_registry(registry).read()
        told = {model.name: model for model in instance.models}
        assert told["gpu"].refused.startswith("model 'gpu' fits no device of this node: not on cpu:0, cpu:1, cpu:2")


def test_what_needs_a_card_and_what_has_no_room_on_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "big", WHO, CONFIG + parameter("memory_bytes", "900GiB"))
    write_model(models, "card", WHO, CONFIG + parameter("requires", "gpu") + parameter("memory_bytes", "10GiB"))
    write_model(models, "second", WHO, CONFIG + parameter("memory_bytes", "10GiB"))
    write_model(models, "cpu", WHO, CONFIG + parameter("requires", "cpu"))
    write_model(models, "kind", WHO, CONFIG + "instance_group { count: 1 kind: KIND_GPU }\n")
    write_model(models, "other", WHO, CONFIG + parameter("profiles", "h200, l4"))
    with running_node(tmp_path, models, "--devices", "fake:1") as node, client_of(node) as client:
        index = {each.name: each for each in NodeControl(control_path(node.path)).index()}
        assert {name for name, each in index.items() if each.state == READY} == {"card", "kind"}
        assert "needs 900.0 GiB on fake:0; 16.0 GiB of 16.0 GiB are free" in index["big"].reason
        assert "needs 10.0 GiB on fake:0; 6.0 GiB of 16.0 GiB are free" in index["second"].reason
        assert "not on fake:0: it requires cpu" in index["cpu"].reason
        assert "has profiles for h200, l4 only" in index["other"].reason
        assert client.call("card", OK, 0)


def test_a_model_is_ready_only_once_its_sample_has_run(tmp_path: Path) -> None:
    models = tmp_path / "models"
    write_model(models, "warm", WARM, CONFIG + SAMPLE)
    with running_node(tmp_path, models) as node, client_of(node) as client:
        began_s = time.monotonic()
        client.call("warm", OK, 0)
        assert time.monotonic() - began_s < 0.4
