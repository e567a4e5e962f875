"""Which backends use the executor's GPU, and what TensorRT and torch say where they cannot be."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from fabric.errors import MissingDependency, ModelBroken
from workers.backends.choose import open_backend, uses_gpu
from workers.backends.tensorrt_build import plan_key, read_shapes
from workers.modelconfig import ModelConfig, read_config

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
backend: "{backend}"
input [ {{ name: "x" data_type: {dtype} dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
parameters {{ key: "device" value {{ string_value: "{device}" }} }}
"""


def config(folder: Path, backend: str, device: str = "auto", dtype: str = "TYPE_FP32") -> ModelConfig:
    text = CONFIG.format(backend=backend, device=device, dtype=dtype)
    return read_config(text, "config.pbtxt", "m", "1", str(folder))


@pytest.mark.parametrize(
    ("device", "on_gpu", "lacks", "expected"),
    [
        ("auto", True, "", True),
        ("auto", True, "no build", False),
        ("auto", False, "", False),
        ("cpu", True, "", False),
        ("gpu", True, "", True),
    ],
)
def test_where_a_model_runs(tmp_path: Path, device: str, on_gpu: bool, lacks: str, expected: bool) -> None:
    assert uses_gpu(config(tmp_path, "torch", device), on_gpu=on_gpu, lacks=lacks) is expected


@pytest.mark.parametrize(
    ("device", "on_gpu", "lacks", "says"),
    [
        ("gpu", False, "", "start the node with cuda:all"),
        ("gpu", True, "no build", "no build"),
        ("tpu", True, "", "tpu"),
    ],
)
def test_where_it_cannot(tmp_path: Path, device: str, on_gpu: bool, lacks: str, says: str) -> None:
    with pytest.raises(ModelBroken, match=says):
        uses_gpu(config(tmp_path, "torch", device), on_gpu=on_gpu, lacks=lacks)


def test_tensorrt_without_a_gpu_is_refused_before_the_library_is_asked(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match="use cuda:all"):
        open_backend(config(tmp_path, "tensorrt"), 1, on_gpu=False)


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="TensorRT is installed")
def test_tensorrt_that_is_missing_is_told_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(MissingDependency, match="pip install tensorrt"):
        open_backend(config(tmp_path, "tensorrt"), 1, on_gpu=True)


def test_torch_needs_a_file_and_numbers(tmp_path: Path) -> None:
    with pytest.raises(ModelBroken, match=r"has no model\.pt2 or model\.pt"):
        open_backend(config(tmp_path, "torch"), 1, on_gpu=False)
    with pytest.raises(ModelBroken, match="TYPE_STRING"):
        open_backend(config(tmp_path, "torch", dtype="TYPE_STRING"), 1, on_gpu=False)


@pytest.mark.skipif(find_spec("torch") is not None, reason="torch is installed")
def test_torch_that_is_missing_is_told_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    with pytest.raises(MissingDependency, match="pip install torch"):
        open_backend(config(tmp_path, "torch"), 1, on_gpu=False)


def test_a_plan_is_kept_under_all_that_it_depends_on() -> None:
    """R34: another release, card, driver, model or profile is another engine."""
    usual = ("11.4", ("sm_90", "13000"), b"model", ("x:1x4", "", ""))
    others = [
        ("11.3", *usual[1:]),
        (usual[0], ("sm_89", "13000"), *usual[2:]),
        (usual[0], ("sm_90", "13010"), *usual[2:]),
        (*usual[:2], b"Model", usual[3]),
        (*usual[:3], ("", "x:1x4", "")),
    ]
    keys = {plan_key(*each) for each in [usual, *others]}
    assert len(keys) == 6
    assert plan_key(*usual) in keys


def test_shapes_of_a_profile() -> None:
    assert read_shapes("m", "max_shapes", "x:1x16, a:b:4") == {"x": (1, 16), "a:b": (4,)}
    assert read_shapes("m", "max_shapes", "") == {}
    for text in ("x", "x:", "x:1x", "x:1xa", ":4"):
        with pytest.raises(ModelBroken, match="write NAME"):
            read_shapes("m", "max_shapes", text)
