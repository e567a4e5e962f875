"""The ONNX backend: its answers, its checks of the file, and what it says where the library is missing."""

from __future__ import annotations

import hashlib
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from fabric.errors import MissingDependency, ModelBroken
from fabric.memory.lease import tensors
from workers.backends.base import Declared, Inputs, Outputs
from workers.backends.onnxruntime import OnnxModel
from workers.modelconfig import ModelConfig, read_config

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
backend: "onnxruntime"
input [ { name: "a" data_type: TYPE_FP32 dims: [ -1, 2 ] }, { name: "b" data_type: TYPE_FP32 dims: [ -1, 2 ] } ]
output { name: "sum" data_type: TYPE_FP32 dims: [ -1, 2 ] }
"""


def config(folder: Path, text: str = CONFIG) -> ModelConfig:
    return read_config(text, "config.pbtxt", "m", "1", str(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a model that adds its two inputs."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info(name, kind, ["n", 2]) for name in "ab"]
    output = helper.make_tensor_value_info("sum", kind, ["n", 2])
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["sum"])], "adds", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    return tmp_path


def test_runs_and_warms_up(folder: Path) -> None:
    model = OnnxModel(config(folder), threads=1)
    assert model.warm_up()
    memory = memoryview(bytearray(4096))
    outputs = Outputs(Declared("m", config(folder).outputs), memory)
    ones = np.ones((3, 2), np.float32)
    model.execute(Inputs({"a": ones, "b": 2 * ones}), outputs)
    layout, aside = outputs.finish()
    assert aside is None
    assert (tensors(memory, layout)[0] == 3).all()


def test_the_librarys_own_error_is_one_line(folder: Path) -> None:
    model = OnnxModel(config(folder), threads=1)
    outputs = Outputs(Declared("m", config(folder).outputs), memoryview(bytearray(4096)))
    with pytest.raises(RuntimeError) as caught:
        model.execute(Inputs({"a": np.ones((3, 2), np.float32), "b": np.ones((2, 2), np.float32)}), outputs)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("2 by 3")
    assert len(str(caught.value)) <= 300


def test_the_checksum_beside_the_file_counts(folder: Path) -> None:
    good = hashlib.sha256((folder / "model.onnx").read_bytes()).hexdigest()
    (folder / "model.onnx.sha256").write_text(f"{good}  model.onnx\n")
    OnnxModel(config(folder), threads=1)
    (folder / "model.onnx.sha256").write_text(f"{'0' * 64}  model.onnx\n")
    with pytest.raises(ModelBroken, match="not the file"):
        OnnxModel(config(folder), threads=1)
    (folder / "model.onnx.sha256").write_text("")
    with pytest.raises(ModelBroken, match="sha256 cannot be read"):
        OnnxModel(config(folder), threads=1)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (('name: "a"', 'name: "c"'), "declares inputs"),
        (('"b" data_type: TYPE_FP32', '"b" data_type: TYPE_FP64'), "declares inputs"),
        (('name: "sum"', 'name: "other"'), "declares outputs"),
    ],
)
def test_config_and_file_must_agree(folder: Path, change: tuple[str, str], says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        OnnxModel(config(folder, CONFIG.replace(*change)), threads=1)


def test_files_that_are_none(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ModelBroken, match="cannot be loaded"):
        OnnxModel(config(folder), threads=1)
    (folder / "model.onnx").unlink()
    with pytest.raises(ModelBroken, match="cannot be read"):
        OnnxModel(config(folder), threads=1)


def test_a_missing_library_is_told_with_the_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingDependency, match="pip install onnxruntime"):
        OnnxModel(config(folder), threads=1)
