"""What an ensemble's configuration may say, alone and beside those of its steps."""

from __future__ import annotations

import json

import pytest

from fabric.errors import ModelBroken
from workers.configjson import json_of_config, tree_of_json
from workers.ensembleconfig import EnsembleStep, check_steps
from workers.modelconfig import ModelConfig, config_of, read_config

STEPS = """
    step [
      { model_name: "plan" model_version: -1
        input_map { key: "stops" value: "orders" } output_map { key: "route" value: "way" } },
      { model_name: "time"
        input_map { key: "x" value: "way" } input_map { key: "w" value: "weather" }
        output_map { key: "minutes" value: "eta" } }
    ]
"""
CHAIN = """
platform: "ensemble"
input [ { name: "orders" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "weather" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "eta" data_type: TYPE_FP32 dims: [ -1 ] } ]
ensemble_scheduling { STEPS }
"""
PLAN = """
backend: "python"
input [ { name: "stops" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "route" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
TIME = """
backend: "python"
input [ { name: "x" data_type: TYPE_INT32 dims: [ -1 ] }, { name: "w" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "minutes" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""
IDEMPOTENT = 'parameters { key: "idempotent" value { string_value: "true" } }\n'


def read(text: str, name: str = "chain") -> ModelConfig:
    return read_config(text, "config.pbtxt", name, "1", f"/models/{name}/1")


def chain(old: str = "", new: str = "") -> ModelConfig:
    text = CHAIN.replace("STEPS", STEPS)
    assert old in text
    return read(text.replace(old, new, 1))


def others(plan: str = PLAN, time: str = TIME) -> dict[str, ModelConfig]:
    return {"plan": read(plan, "plan"), "time": read(time, "time")}


def test_steps_are_read_in_tritons_words_and_told_so() -> None:
    config = chain()
    assert config.backend == "ensemble"
    assert config.warnings == ()
    assert config.steps == (
        EnsembleStep("plan", (("stops", "orders"),), (("route", "way"),)),
        EnsembleStep("time", (("x", "way"), ("w", "weather")), (("minutes", "eta"),)),
    )
    told = json_of_config(config)
    assert json.loads(told)["platform"] == "ensemble"
    again = config_of(tree_of_json(told, "json"), "json", "chain", "1", config.path)
    assert again.steps == config.steps
    check_steps(config, others())


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('platform: "ensemble"', 'backend: "python"', 'needs platform "ensemble"'),
        (f"ensemble_scheduling {{ {STEPS} }}", "", "ensemble_scheduling with steps"),
        (STEPS, "", "0 steps"),
        ("model_version: -1", "model_version: 2", "leave model_version out"),
        ('model_name: "plan"', "", "no model_name"),
        ('model_name: "plan"', 'model_name: "chain"', "a step of its own"),
        ('input_map { key: "stops" value: "orders" }', "", "needs an input_map"),
        ('key: "w" value: "weather"', 'key: "x" value: "weather"', "a key that another has"),
        ('key: "stops" value: "orders"', 'key: "stops" value: "way"', "neither the request nor an earlier step"),
        ('key: "route" value: "way"', 'key: "route" value: "orders"', "is there already"),
        ('input_map { key: "w" value: "weather" }', "", "no step reads input 'weather'"),
        ('key: "minutes" value: "eta"', 'key: "minutes" value: "other"', "no step gives output 'eta'"),
        ('platform: "ensemble"', 'platform: "ensemble" max_batch_size: 4 dynamic_batching { }', "no dynamic_batching"),
        ('platform: "ensemble"', 'platform: "ensemble" model_warmup { name: "s" }', "no model_warmup"),
    ],
)
def test_what_is_no_chain_is_told(old: str, new: str, says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        chain(old, new)


@pytest.mark.parametrize(
    ("plan", "time", "says"),
    [
        (PLAN.replace('"stops" data_type: TYPE_INT32', '"stops" data_type: TYPE_INT64'), TIME, "takes INT64"),
        (PLAN, TIME.replace("FP32 dims: [ -1 ] } ]\noutput", "FP32 dims: [ 4 ] } ]\noutput"), r"takes FP32 \[4\]"),
        (PLAN, TIME.replace('"x"', '"y"'), "needs y"),
        (PLAN.replace('"route"', '"path"'), TIME, "has no output 'route'"),
        (PLAN, TIME.replace('"minutes" data_type: TYPE_FP32', '"minutes" data_type: TYPE_FP64'), "gives FP64"),
        (PLAN, CHAIN.replace("STEPS", STEPS.replace('"time"', '"other"')), "is an ensemble too"),
    ],
)  # fmt: skip
def test_what_does_not_fit_its_steps_is_told(plan: str, time: str, says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        check_steps(chain(), others(plan, time))


def test_a_step_that_is_not_there_and_one_that_may_not_run_twice() -> None:
    with pytest.raises(ModelBroken, match="'time' is not loaded here"):
        check_steps(chain(), {"plan": read(PLAN, "plan")})
    twice = read(CHAIN.replace("STEPS", STEPS) + IDEMPOTENT)
    with pytest.raises(ModelBroken, match="its step 'time' is not"):
        check_steps(twice, others(PLAN + IDEMPOTENT))
    check_steps(twice, others(PLAN + IDEMPOTENT, TIME + IDEMPOTENT))
