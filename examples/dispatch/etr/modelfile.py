"""Model files on disk: written with their hash, read only when hash and ONNX checker agree.

`model.onnx` stands beside `model.onnx.sha256` (the line `sha256sum` writes). A file that was cut short, edited or
mixed up is refused here in one sentence, before any runtime parses it. Weights come back out of the file's
initializers by name. It runs no model. Next: `evaluate.py` and `bench.py`, which do.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from examples.dispatch.etr.network import NetSpec, Weights

MODELS = Path(__file__).resolve().parent.parent / "models"
FILE_NAME = "model.onnx"


class BrokenModelFile(ValueError):
    """A model file is missing, was changed after its hash was taken, or is not a valid ONNX model."""


def shipped(name: str) -> Path:
    """Where the model of that name stands in the model repository, version 1."""
    return MODELS / name / "1" / FILE_NAME


def hash_path(model: Path) -> Path:
    """The hash file that belongs to a model file."""
    return model.with_name(model.name + ".sha256")


def write_model(model: Path, payload: bytes) -> None:
    """Write a model and then its hash; a crash between the two leaves a file that `read_model` refuses."""
    model.parent.mkdir(parents=True, exist_ok=True)
    model.write_bytes(payload)
    hash_path(model).write_text(f"{hashlib.sha256(payload).hexdigest()}  {model.name}\n", encoding="ascii")


def read_model(model: Path) -> bytes:
    """The bytes of a model file that passed hash and checker; raises BrokenModelFile."""
    try:
        payload = model.read_bytes()
        wanted = hash_path(model).read_text(encoding="ascii").split()[:1]
    except (OSError, ValueError) as error:
        raise BrokenModelFile(
            f"Cannot read {model} and its .sha256 beside it: restore both from the release."
        ) from error
    if wanted != [hashlib.sha256(payload).hexdigest()]:
        raise BrokenModelFile(f"{model} does not match its .sha256: restore both from the release, or train again.")
    check(payload, model)
    return payload


def check(payload: bytes, origin: Path) -> None:
    """Raise BrokenModelFile where the ONNX checker refuses the model."""
    try:
        _onnx().checker.check_model(_parse(payload), full_check=True)
    except Exception as error:  # protobuf and the checker have types of their own, all with one meaning
        raise BrokenModelFile(
            f"{origin} is not a valid ONNX model: restore it from the release, or train again."
        ) from error


def read_weights(spec: NetSpec, model: Path) -> Weights:
    """The parameters of a checked model file; raises BrokenModelFile, or WrongWeights for another network's file."""
    onnx = _onnx()
    graph = _parse(read_model(model)).graph
    return Weights.of(spec, [(entry.name, onnx.numpy_helper.to_array(entry)) for entry in graph.initializer])


def _onnx() -> Any:
    if importlib.util.find_spec("onnx") is None:
        raise BrokenModelFile("Checking model files needs the onnx package: pip install onnx.")
    import onnx

    return onnx


def _parse(payload: bytes) -> Any:
    return _onnx().load_from_string(payload)
