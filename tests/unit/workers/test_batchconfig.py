"""How batching is configured, and what a node reads of a request to tell what it may run with."""

from __future__ import annotations

import numpy as np
import pytest

from fabric.descriptors import rows_and_kind
from fabric.dtypes import DType, dtype_of
from fabric.errors import ModelBroken
from fabric.layout import TensorSpec, layout_of
from workers.batchconfig import Batching, QueuePolicy
from workers.modelconfig import read_config

MODEL = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""


@pytest.mark.parametrize("shape", [(3, 2), (1,), (7, 0), (2, 3, 4)])
def test_a_nodes_reading_of_descriptors_is_that_of_the_layout(shape: tuple[int, ...]) -> None:
    specs = TensorSpec.of("x", DType.FP32, shape), TensorSpec.of("né", dtype_of(np.empty(0, np.int64)), shape[:1])
    rows, kind = rows_and_kind(layout_of(specs).encoded)
    more = TensorSpec.of("x", DType.FP32, (9, *shape[1:])), TensorSpec.of("né", DType.INT64, (9,))
    assert rows == shape[0]
    assert rows_and_kind(layout_of(more[::-1]).encoded) == (9, kind)
    for other in (
        (TensorSpec.of("x", DType.FP16, shape), specs[1]),
        (TensorSpec.of("z", DType.FP32, shape), specs[1]),
        (TensorSpec.of("x", DType.FP32, (*shape, 5)), specs[1]),
        specs[:1],
    ):
        assert rows_and_kind(layout_of(other).encoded)[1] != kind


def test_what_has_no_rows_or_is_no_descriptors_runs_alone() -> None:
    uneven = TensorSpec.of("x", DType.FP32, (3, 2)), TensorSpec.of("y", DType.FP32, (2, 2))
    scalar = (TensorSpec.of("x", DType.FP32, ()),)
    none = (TensorSpec.of("x", DType.FP32, (0, 2)),)
    for specs in (uneven, scalar, none, ()):
        assert rows_and_kind(layout_of(specs).encoded) == (0, b"")
    good = layout_of((TensorSpec.of("x", DType.FP32, (3, 2)),)).encoded
    for cut in range(len(good)):
        assert rows_and_kind(good[:cut])[0] in {0, 3}  # a name that is cut is another name
    assert rows_and_kind(b"\xff" * 100) == (0, b"")


def test_the_configuration_is_read_in_tritons_words() -> None:
    config = read_config(
        MODEL
        + """
        max_batch_size: 16
        dynamic_batching {
          preferred_batch_size: [ 8, 4 ]
          max_queue_delay_microseconds: 100
          preserve_ordering: true
          priority_levels: 3
          default_priority_level: 2
          default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true }
          priority_queue_policy { key: 1 value { max_queue_size: 7 } }
        }
        """, "m/config.pbtxt", "m", "1", "/m/1",
    )  # fmt: skip
    policy = QueuePolicy(delays=True, timeout_us=5, allow_override=True)
    levels = ((1, QueuePolicy(size_max=7)),)
    assert config.batching == Batching(
        16, (4, 8), 100, ordered=True, levels=3, default_level=2, policy=policy, policies=levels
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("preferred_batch_size: [ 17 ]", "max_batch_size of 16"),
        ("preferred_batch_size: [ 0 ]", "from 1"),
        ("max_queue_delay_microseconds: -1", "0 or more"),
        ("priority_levels: 3", "one of them as the default"),
        ("priority_levels: 300 default_priority_level: 1", "255"),
        ("default_queue_policy { timeout_action: DROP }", "REJECT, DELAY"),
        ("default_queue_policy { max_queue_size: -4 }", "negative"),
        ("priority_queue_policy { key: 4 value { } }", "level 4"),
        ("priority_queue_policy { value { } }", "key and value"),
        ("preserve_ordering: 3", "preserve_ordering"),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_line(text: str, says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        read_config(f"{MODEL}\nmax_batch_size: 16 dynamic_batching {{ {text} }}", "m/config.pbtxt", "m", "1", "/m/1")
