"""A model's configuration: defaults, the fields we use, and one error for each that is wrong."""

from __future__ import annotations

import pytest

from fabric.errors import ModelBroken
from workers.modelconfig import QUEUE_SIZE_DEFAULT, Batching, ModelConfig, TensorDecl, read_config

GOOD = """
name: "m" backend: "python"
input [ { name: "x" data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: "t" data_type: TYPE_STRING dims: [ 1 ] } ]
output { name: "y" data_type: TYPE_INT64 dims: [ 3 ] }
"""


def read(text: str) -> ModelConfig:
    return read_config(text, "config.pbtxt", "m", "1", "/models/m/1")


def test_plain_model() -> None:
    config = read(GOOD)
    assert config.inputs == (TensorDecl("x", "FP32", (-1, 2)), TensorDecl("t", "BYTES", (1,)))
    assert config.outputs == (TensorDecl("y", "INT64", (3,)),)
    assert not config.idempotent
    assert config.queue_size_max == QUEUE_SIZE_DEFAULT
    assert config.execution_timeout_s is None
    assert config.batching is None
    assert config.warnings == ()


def test_batching_puts_a_dimension_in_front() -> None:
    config = read(
        GOOD + "max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 8] max_queue_delay_microseconds: 100 }"
    )
    assert config.inputs[0].dims == (-1, -1, 2)
    assert config.batching == Batching(8, (4, 8), 100)


def test_parameters() -> None:
    config = read(
        GOOD
        + 'parameters { key: "idempotent" value { string_value: "true" } }'
        + 'parameters { key: "execution_timeout_ms" value { string_value: "250" } }'
        + 'parameters { key: "max_queue_size" value { string_value: "7" } }'
    )
    assert config.idempotent
    assert config.execution_timeout_s == 0.25
    assert config.queue_size_max == 7
    assert config.parameter("none", "d") == "d"


def test_platform_names_the_backend() -> None:
    text = GOOD.replace('backend: "python"', 'platform: "onnxruntime_onnx"')
    assert read(text).backend == "onnxruntime"


def test_cuda_graphs_are_asked_for_in_tritons_words() -> None:
    config = read(GOOD + "optimization { cuda { graphs: true } }")
    assert config.cuda_graphs
    assert not config.warnings
    assert not read(GOOD + "optimization { cuda { graphs: false } }").cuda_graphs


def test_unknown_fields_warn_with_their_line() -> None:
    config = read(GOOD + "optimization { graph { level: 1 } }")
    assert len(config.warnings) == 1
    assert config.warnings[0].startswith("config.pbtxt:5: field 'optimization'")


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("idempotnt", "idempotent"),
        ("Idempotent", "idempotent"),
        ("execution-timeout-ms", "execution_timeout_ms"),
        ("execution_timeout_s", "execution_timeout_ms"),
        ("max_queue_sizes", "max_queue_size"),
        ("refuse_nans", "refuse_nan"),
    ],
)
def test_a_misspelt_parameter_is_warned_about(key: str, meant: str) -> None:
    (warning,) = read(GOOD + f'parameters {{ key: "{key}" value {{ string_value: "7" }} }}').warnings
    assert warning == f"config.pbtxt:5: parameter {key!r} is not one of ours; did you mean {meant!r}?"


@pytest.mark.parametrize("key", ["subset_orders_max", "threads", "queue", "threshold", "vocabulary"])
def test_a_parameter_of_the_models_own_is_not(key: str) -> None:
    assert not read(GOOD + f'parameters {{ key: "{key}" value {{ string_value: "7" }} }}').warnings


def test_what_is_asked_of_a_tensor_or_a_group_and_not_done_is_told() -> None:
    config = read("""
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] optional: true reshape { shape: [ ] } }
input { name: "z" data_type: TYPE_FP32 dims: [ 1 ] optional: false format: FORMAT_NONE }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] label_filename: "labels.txt" }
instance_group { count: 1 passive: true }
version_policy { latest { num_versions: 1 } }
""")
    told = [warning.partition(": field ")[2].partition(" is not used")[0] for warning in config.warnings]
    group = "'passive' of instance_group"
    assert told == ["'optional' of input 'x'", "'reshape' of input 'x'", "'label_filename' of output 'y'", group]
    for policy in ("latest { num_versions: 2 }", "specific { versions: [ 1 ] }", "all { }"):
        assert len(read(GOOD + f"version_policy {{ {policy} }}").warnings) == 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name: "m"', 'name: "other"'), "is named 'other'"),
        (('backend: "python"', 'backend: "tensorflow"'), "backend 'tensorflow' is unknown"),
        (('backend: "python"', ""), "backend '' is unknown"),
        (("TYPE_FP32", "TYPE_FP8"), "data_type 'TYPE_FP8'"),
        (("TYPE_FP32", "TYPE_FLOAT"), "data_type 'TYPE_FLOAT'; give one of TYPE_BOOL, TYPE_UINT8"),
        (("TYPE_FP32", "FP32"), "data_type 'FP32'"),
        (("TYPE_FP32", '"TYPE_FP32"'), "'data_type' must be a name"),
        (("[ -1, 2 ]", "[ 0 ]"), "dims [0]"),
        (("[ -1, 2 ]", "[ 1.5 ]"), "'dims' is 1.5"),
        (('name: "t"', 'name: "x"'), "that another has"),
        (("output {", "unused {"), "declares no output"),
        (('name: "m"', 'name: "m" name: "m"'), "stands there twice"),
        (('name: "m"', 'name: "m" max_batch_size: -1'), "max_batch_size is -1"),
        (('name: "m"', 'name: "m" input: 3'), "'input' needs braces"),
    ],
)
def test_what_cannot_be_served_is_told(change: tuple[str, str], says: str) -> None:
    with pytest.raises(ModelBroken) as caught:
        read(GOOD.replace(*change))
    assert says in str(caught.value)
    assert str(caught.value).startswith("config.pbtxt:")


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("idempotent", "yes", "write true or false"),
        ("refuse_nan", "1", "write true or false"),
        ("max_queue_size", "0", "at least 1"),
        ("max_queue_size", "many", "at least 1"),
        ("execution_timeout_ms", "-5", "at least 1"),
        ("inputs_private", "some", "auto, all or none"),
    ],
)
def test_wrong_parameters_are_told_at_the_start(key: str, value: str, says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        read(GOOD + f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}')
