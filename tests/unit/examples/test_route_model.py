"""The model as a node serves it: its config says what the contract says, and its replies are the solver's bytes."""

from pathlib import Path

import numpy as np
import pytest

from examples.dispatch.city.generate import CityPlan, city_round
from examples.dispatch.route_plan import INPUTS, OUTPUTS, Options, solve_batch
from workers.backends.python import PythonModel
from workers.modelconfig import ModelConfig, read_config

FOLDER = Path(__file__).parents[3] / "examples" / "dispatch" / "models" / "route_plan"
NAMES = {"int32": "INT32", "int64": "INT64", "uint8": "UINT8"}


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    path = FOLDER / "config.pbtxt"
    return read_config(path.read_text(), str(path), "route_plan", "1", str(FOLDER / "1"))


def serve(config: ModelConfig, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the model on read-only inputs, as an executor gives them, and collect what it sets."""
    inputs = {name: array.copy() for name, array in tensors.items()}
    for array in inputs.values():
        array.flags.writeable = False
    outputs: dict[str, np.ndarray] = {}
    PythonModel(config).execute(inputs, outputs)
    return outputs


def test_the_config_declares_the_contract(config: ModelConfig) -> None:
    assert [(d.name, d.dtype, d.dims) for d in config.inputs] == [(n, NAMES[k], shape) for n, k, shape in INPUTS]
    assert [(d.name, d.dtype, d.dims) for d in config.outputs] == [(n, NAMES[k], shape) for n, k, shape in OUTPUTS]
    assert config.idempotent
    assert not config.warnings


def test_a_reply_is_the_single_process_answer(config: ModelConfig) -> None:
    assert PythonModel(config).warm_up()
    shard = next(city_round(CityPlan(seed=2, orders=60, riders=100, near=4, options=Options(starts=2))).shards())
    reply = serve(config, shard.tensors())
    for name, array in shard.reference().tensors().items():
        assert reply[name].tobytes() == array.tobytes(), name
    assert list(reply) == [decl.name for decl in config.outputs]
    for decl in config.outputs:
        assert NAMES[reply[decl.name].dtype.name] == decl.dtype
        assert all(want in (-1, got) for want, got in zip(decl.dims, reply[decl.name].shape, strict=True))
    assert solve_batch(shard.batch).status.tolist() == reply["status"].tolist()


def test_a_request_that_is_no_batch_is_refused_in_one_sentence(config: ModelConfig) -> None:
    batch = city_round(CityPlan(orders=5, riders=9, near=2)).batch
    with pytest.raises(ValueError, match="option starts is 0"):
        serve(config, {**batch.tensors(), "options": Options(starts=0).tensor()})
    with pytest.raises(ValueError, match="subset_orders_max must be at most 13"):
        serve(config, {**batch.tensors(), "options": Options(subset_orders_max=15).tensor()})
