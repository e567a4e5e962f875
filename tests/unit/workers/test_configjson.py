"""A configuration that is told as JSON and given back is the same configuration."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from fabric.errors import ModelBroken
from workers.configjson import json_of_config, tree_of_json
from workers.modelconfig import config_of, read_config

FULL = """
backend: "python"
max_batch_size: 16
input { name: "x" data_type: TYPE_FP32 dims: [ 2, -1 ] }
input { name: "7" data_type: TYPE_STRING dims: [ ] }
output { name: "y" data_type: TYPE_INT64 dims: [ 2 ] }
instance_group [ { count: 2 kind: KIND_CPU } ]
parameters { key: "idempotent" value { string_value: "true" } }
parameters { key: "max_queue_size" value { string_value: "12" } }
dynamic_batching {
  preferred_batch_size: [ 4, 8 ] max_queue_delay_microseconds: 100 preserve_ordering: true
  priority_levels: 2 default_priority_level: 1
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 }
  priority_queue_policy { key: 2 value { max_queue_size: 7 } }
}
model_warmup {
  name: "s" batch_size: 3 count: 2
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 2, 4 ] random_data: true } }
  inputs { key: "7" value { data_type: TYPE_STRING dims: [ ] input_data_file: "8" } }
}
"""


def test_there_and_back() -> None:
    config = read_config(FULL, "m/config.pbtxt", "m", "1", "/m/1")
    again = config_of(tree_of_json(json_of_config(config), "m/config.pbtxt"), "m/config.pbtxt", "m", "1", "/m/1")
    assert again == config  # nothing of our own JSON is warned about


def test_the_front_doors_message_has_a_place_for_all_of_it() -> None:
    """What has none is left out over gRPC, without a word."""
    from google.protobuf import json_format

    from frontdoor.messages import message

    graphs = "optimization { cuda { graphs: true } }"
    told = json_of_config(read_config(FULL + graphs, "m/config.pbtxt", "m", "1", "/m/1"))
    batching = json_format.Parse(told, message("ModelConfig")()).dynamic_batching
    assert (batching.priority_levels, batching.priority_queue_policy[2].max_queue_size) == (2, 7)
    assert batching.default_queue_policy.timeout_action == 1


def test_protobufs_own_spelling_and_64_bit_numbers_as_strings() -> None:
    facts = json.loads(json_of_config(read_config(FULL, "m", "m", "1", "/m/1")))
    facts["maxBatchSize"] = str(facts.pop("max_batch_size"))
    facts["dynamicBatching"] = facts.pop("dynamic_batching")
    facts["dynamicBatching"]["maxQueueDelayMicroseconds"] = "100"
    del facts["dynamicBatching"]["max_queue_delay_microseconds"]
    facts["input"][0]["dims"] = ["2", "-1"]
    facts["input"][1]["dims"] = None
    again = config_of(tree_of_json(json.dumps(facts), "m"), "m", "m", "1", "/m/1")
    assert replace(again, warnings=()) == read_config(FULL, "m", "m", "1", "/m/1")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "3", "{", '{"input": [[1]]}', '{"input": 3}', "{" * 200_000, '{"name": {"a": ' * 40 + "1" + "}" * 80],
)
def test_what_is_no_configuration_is_told_in_a_sentence(text: str) -> None:
    with pytest.raises(ModelBroken):
        config_of(tree_of_json(text, "the given configuration"), "the given configuration", "m", "1", "/m/1")
