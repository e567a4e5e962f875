"""A model has run on its samples before anybody asks it, and one that fails on them is not loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.dtypes import bytes_encode
from fabric.errors import ModelBroken
from workers.execution import LoadedModel
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

CODE = """
import numpy as np
class Model:
    def __init__(self, config):
        self.seen = []
    def execute(self, inputs, outputs):
        self.seen.append({name: array.copy() for name, array in inputs.items()})
        if (inputs["x"] == 7).any():
            raise KeyError("seven")
        outputs["y"] = inputs["x"]
"""
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
input { name: "t" data_type: TYPE_STRING dims: [ 1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
TEXT = '{ key: "t" value { data_type: TYPE_STRING dims: [ 1 ] zero_data: true } }'


def loaded(folder: Path, warmup: str) -> LoadedModel:
    version = folder / "1"
    version.mkdir(exist_ok=True)
    (version / "model.py").write_text(CODE)
    return LoadedModel(read_config(CONFIG + warmup, "m/config.pbtxt", "m", "1", str(version)), 1)


def seen(model: LoadedModel) -> list[dict[str, np.ndarray]]:
    return model.backend._model.seen  # type: ignore[attr-defined]


def sample(x: str, more: str = "", text: str = TEXT) -> str:
    return f'model_warmup {{ name: "s" {more} inputs [ {{ key: "x" value {{ data_type: TYPE_FP32 {x} }} }}, {text} ] }}'


def test_samples_run_as_often_as_they_say(tmp_path: Path) -> None:
    model = loaded(tmp_path, sample("dims: [ 2 ] zero_data: true", "batch_size: 4 count: 3"))
    assert len(model.warm_up()) == 1
    assert [given["x"].shape for given in seen(model)] == [(4, 2)] * 3
    assert not seen(model)[0]["x"].any()
    assert seen(model)[0]["t"].tolist() == [[b""]] * 4


def test_random_values_are_the_same_each_time_and_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "text").write_bytes(bytes_encode([b"hello"]))
    text = '{ key: "t" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "text" } }'
    warmup = sample("dims: [ 2 ] random_data: true", "batch_size: 2 count: 1", text)
    first, second = loaded(tmp_path, warmup), loaded(tmp_path, warmup)
    first.warm_up()
    second.warm_up()
    assert seen(first)[0]["x"].any()
    assert (seen(first)[0]["x"] == seen(second)[0]["x"]).all()
    assert seen(first)[0]["t"].tolist() == [[b"hello"]] * 2


@pytest.mark.parametrize(
    ("warmup", "says"),
    [
        (sample("dims: [ 2 ] zero_data: true", text=""), "differ in t"),
        (sample('dims: [ 2 ] input_data_file: "none"'), "warmup/none"),
        (sample('dims: [ 2 ] input_data_file: "seven"'), "KeyError: 'seven' in model.py"),
        (sample('dims: [ 3 ] input_data_file: "seven"'), r"is no FP32 \[3\]"),
    ],
)
def test_what_fails_in_a_warm_up_fails_the_load(tmp_path: Path, warmup: str, says: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "seven").write_bytes(np.full(2, 7, np.float32).tobytes())
    with pytest.raises(ModelBroken, match=says):
        loaded(tmp_path, warmup).warm_up()


@pytest.mark.parametrize(
    ("warmup", "says"),
    [
        (sample("dims: [ 2 ]", "batch_size: 9"), "max_batch_size of 8"),
        (sample("dims: [ 2 ]", "count: 10000"), "1000 runs"),
        (sample("dims: [ -1 ]"), "dims that are sizes"),
        (sample('dims: [ 2 ] input_data_file: "../x"'), "folder warmup"),
        ('model_warmup { inputs { key: "x" value { dims: [ 2 ] } } }', "data_type"),
        ('model_warmup { inputs { key: "x" } }', "key and value"),
    ],
)
def test_a_sample_that_cannot_be_meant_is_told_with_its_line(tmp_path: Path, warmup: str, says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        loaded(tmp_path, warmup)
