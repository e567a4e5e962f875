"""Builds a TensorRT engine from `model.onnx`, and keeps it for the next start: full TensorRT only.

An engine is kept under everything that it depends on: the release of TensorRT, the card, the driver, the model's
content and the shapes asked for; whatever changes, another one is built. Shapes come from the parameters `min_shapes`,
`opt_shapes` and `max_shapes`, such as `x:1x16,y:1x4`; without them -1 counts as 1. It is not run by `make test`, since
the library's builder is in no package index. Read `workers/backends/tensorrt.py` for who runs what is built.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fabric.errors import MissingDependency, ModelBroken
from workers.cuda.queue import card_words

if TYPE_CHECKING:
    from workers.modelconfig import ModelConfig

SHAPE_KEYS = ("min_shapes", "opt_shapes", "max_shapes")


def plan_key(version: str, card: tuple[str, ...], onnx: bytes, shapes: tuple[str, ...]) -> str:
    """The name of an engine: a hash of all that it depends on. `card` names the kind of card and the driver."""
    digest = hashlib.sha256(onnx)
    for part in (version, *card, *shapes):
        digest.update(f"\0{part}".encode())
    return digest.hexdigest()[:32]


def cache_folder() -> Path:
    """Where engines are kept: $OVERSPILL_PLANS, or a folder of the user's cache."""
    given = os.environ.get("OVERSPILL_PLANS")
    return Path(given) if given else Path.home() / ".cache" / "overspill" / "plans"


def built_plan(config: ModelConfig, trt: Any) -> bytes:
    """The engine of a model, kept or built now. Raises MissingDependency without a builder, ModelBroken for a model
    that cannot be built."""
    onnx = (Path(config.path) / "model.onnx").read_bytes()
    shapes = tuple(config.parameter(key) for key in SHAPE_KEYS)
    kept = cache_folder() / f"{plan_key(trt.__version__, card_words(), onnx, shapes)}.plan"
    if kept.is_file():
        return kept.read_bytes()
    if not hasattr(trt, "Builder"):
        raise MissingDependency(
            f"model {config.name!r} has no model.plan and this TensorRT cannot build one; install the full one"
            " (pip install tensorrt), or put an engine there"
        )
    plan = _build(config, trt, onnx, shapes)
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as file:
        file.write(plan)
    Path(file.name).replace(kept)  # whole or not at all, whoever else builds the same
    return plan


def read_shapes(model: str, key: str, text: str) -> dict[str, tuple[int, ...]]:
    """Reads `x:1x16,y:1x4`. Raises ModelBroken for what is none."""
    found = {}
    for item in filter(None, text.split(",")):
        name, _, dims = item.strip().rpartition(":")
        sizes = dims.split("x")
        if not name or not all(size.isascii() and size.isdecimal() for size in sizes):
            raise ModelBroken(f"model {model!r}: parameter {key!r} holds {item.strip()!r}; write NAME:1x16,NAME:4")
        found[name] = tuple(map(int, sizes))
    return found


def _build(config: ModelConfig, trt: Any, onnx: bytes, shapes: tuple[str, ...]) -> bytes:
    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse(onnx):
        why = "; ".join(str(parser.get_error(number)) for number in range(min(3, parser.num_errors)))
        raise ModelBroken(f"model {config.name!r}: TensorRT cannot read model.onnx: {' '.join(why.split())[:300]}")
    settings = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    wanted = [read_shapes(config.name, key, text) for key, text in zip(SHAPE_KEYS, shapes, strict=True)]
    for decl in config.inputs:
        if -1 in decl.dims:
            one = tuple(1 if dim == -1 else dim for dim in decl.dims)
            least, usual, most = (each.get(decl.name, one) for each in wanted)
            profile.set_shape(decl.name, least, usual, most)
    settings.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, settings)
    if plan is None:
        raise ModelBroken(f"model {config.name!r}: TensorRT cannot build model.onnx; its log says why")
    return bytes(plan)
