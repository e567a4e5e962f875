"""Model files: refused when changed or broken, rebuilt to the byte from their own weights, and truly described."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING

import numpy as np
import onnx
import pytest

from examples.dispatch.etr import graph, modelfile
from examples.dispatch.etr.features import ID_BUCKETS
from examples.dispatch.etr.modelfile import BrokenModelFile, hash_path, read_model, read_weights, shipped, write_model
from examples.dispatch.etr.network import BASE, MINI, NetSpec, Weights, WrongWeights

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NETWORKS = [pytest.param(BASE, graph.base_graph, id="etr"), pytest.param(MINI, graph.mini_graph, id="etr_mini")]
TYPES = {onnx.TensorProto.INT32: "TYPE_INT32", onnx.TensorProto.FLOAT: "TYPE_FP32"}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The shipped small model and its hash, where a test may break them."""
    model = tmp_path / "model.onnx"
    write_model(model, shipped("etr_mini").read_bytes())
    return model


def test_the_shipped_files_pass_and_are_small() -> None:
    total = sum(len(read_model(shipped(name))) for name in ("etr", "etr_mini"))
    assert total < 6_000_000


def test_sizes_of_the_networks() -> None:
    assert BASE.trained_count == 831_256
    assert MINI.trained_count == 78_262


@pytest.mark.parametrize(("spec", "build"), NETWORKS)
def test_building_from_the_shipped_weights_gives_the_shipped_bytes(
    spec: NetSpec, build: Callable[[Weights], bytes]
) -> None:
    model = shipped(spec.name)
    assert build(read_weights(spec, model)) == read_model(model)


@pytest.mark.parametrize(
    "spoil", [lambda b: b[:-1], lambda b: b[:1000] + b"\x00" + b[1001:], lambda b: b"", lambda b: b + b"x"]
)
def test_a_changed_file_is_refused(copy: Path, spoil: Callable[[bytes], bytes]) -> None:
    copy.write_bytes(spoil(copy.read_bytes()))
    with pytest.raises(BrokenModelFile, match=r"does not match its \.sha256"):
        read_model(copy)


@pytest.mark.parametrize("content", ["", "0" * 64 + "  model.onnx\n", "not a hash\n"])
def test_a_changed_hash_is_refused(copy: Path, content: str) -> None:
    hash_path(copy).write_text(content, encoding="ascii")
    with pytest.raises(BrokenModelFile, match=r"does not match its \.sha256"):
        read_model(copy)


@pytest.mark.parametrize("which", ["model", "hash"])
def test_a_missing_file_is_named(copy: Path, which: str) -> None:
    (copy if which == "model" else hash_path(copy)).unlink()
    with pytest.raises(BrokenModelFile, match="Cannot read"):
        read_model(copy)


def test_a_well_hashed_file_that_is_no_model_is_refused(copy: Path) -> None:
    write_model(copy, b"this is no model")
    with pytest.raises(BrokenModelFile, match="not a valid ONNX model"):
        read_model(copy)


def test_a_graph_the_checker_refuses_is_refused(copy: Path) -> None:
    model = onnx.load_from_string(copy.read_bytes())
    model.graph.node[3].op_type = "NoSuchOperator"
    write_model(copy, model.SerializeToString())
    with pytest.raises(BrokenModelFile, match="not a valid ONNX model"):
        read_model(copy)


def test_the_hash_file_is_what_sha256sum_writes(copy: Path) -> None:
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    assert hash_path(copy).read_text(encoding="ascii") == f"{digest}  model.onnx\n"


def test_weights_of_another_network_are_refused() -> None:
    with pytest.raises(WrongWeights, match=r"etr (lacks|needs)"):
        read_weights(BASE, shipped("etr_mini"))


def test_weights_that_are_not_finite_are_refused() -> None:
    weights = read_weights(MINI, shipped("etr_mini"))
    arrays = {p.name: a for p, a in zip(MINI.parameters, weights.arrays, strict=True)}
    arrays["deep.0.w"] = np.full_like(arrays["deep.0.w"], np.nan)
    with pytest.raises(WrongWeights, match=r"deep\.0\.w finite"):
        Weights.of(MINI, arrays)


def test_bucket_counts_in_the_file_are_the_documented_ones() -> None:
    assert read_weights(BASE, shipped("etr"))["ids.buckets"].tolist() == list(ID_BUCKETS)


@pytest.mark.parametrize("name", ["etr", "etr_mini"])
def test_config_describes_the_model(name: str) -> None:
    text = (modelfile.MODELS / name / "config.pbtxt").read_text(encoding="ascii")
    found = re.findall(r'\{ name: "(\w+)" data_type: (\w+) dims: \[ ([-0-9, ]+) \] \}', text)
    model = onnx.load_from_string(read_model(shipped(name)))
    wanted = []
    for entry in [*model.graph.input, *model.graph.output]:
        kind = entry.type.tensor_type
        dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
        wanted.append((entry.name, TYPES[kind.elem_type], ", ".join(str(d) for d in dims)))
    assert found == wanted
    for line in (f'name: "{name}"', 'backend: "onnxruntime"', "max_batch_size: 0"):
        assert line in text.splitlines()
    for key in ("idempotent", "refuse_nan"):
        assert f'parameters {{ key: "{key}" value {{ string_value: "true" }} }}' in text.splitlines()
    assert model.opset_import[0].version == 18
    assert model.ir_version <= 10  # the newest that ONNX Runtime 1.20 loads
