"""A repository in which most models are broken, each in a way of its own, beside one that works.

BROKEN says what the reason must tell. Used by `tests/integration/test_bad_input.py`.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from tests.integration.bad_node import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_CONFIG = """
backend: "{backend}"
input  [ {{ name: "x" data_type: TYPE_FP32 dims: [ -1 ] }} ]
output [ {{ name: "y" data_type: TYPE_FP32 dims: [ -1 ] }} ]
"""
_GOOD = "class Model:\n    def __init__(self, config): pass\n    def execute(self, inputs, outputs): pass\n"


def _python(code: str | None) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / "1").mkdir(parents=True)
        (folder / "config.pbtxt").write_text(_CONFIG.format(backend="python"))
        if code is not None:
            (folder / "1" / "model.py").write_text(code)

    return write


def _config(text: str | bytes | None, version: str = "1") -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        (folder / version).mkdir(parents=True)
        (folder / version / "model.py").write_text(_GOOD)
        if text is not None:
            (folder / "config.pbtxt").write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


def _onnx(payload: bytes | None, sha256: str | None, *, real_config: bool = False) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        real = ROOT / "examples" / "dispatch" / "models" / "etr_mini"
        (folder / "1").mkdir(parents=True)
        text = (real / "config.pbtxt").read_text().replace("etr_mini", folder.name)
        (folder / "config.pbtxt").write_text(text if real_config else _CONFIG.format(backend="onnxruntime"))
        if payload is None:
            shutil.copy(real / "1" / "model.onnx", folder / "1")
        else:
            (folder / "1" / "model.onnx").write_bytes(payload)
        if sha256 is not None:
            (folder / "1" / "model.onnx.sha256").write_text(sha256)

    return write


_INIT = "class Model:\n    def __init__(self, config): {}\n"
_PARAMETER = 'parameters {{ key: "{}" value {{ string_value: "{}" }} }}\n'


def _with(parameter: str, value: str) -> Callable[[Path], None]:
    return _config(_CONFIG.format(backend="python") + _PARAMETER.format(parameter, value))


_WRITERS: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "cut_config": (_config('name: "cut_config" input [ { name: "x"'), ("config.pbtxt:1",)),
    "no_config": (_config(None), ("config.pbtxt", "every model needs one")),
    "binary_config": (_config(b"\xff\xfe\x00"), ("no UTF-8 text", "write it again")),
    "other_name": (_config('name: "else"' + _CONFIG.format(backend="python")), ("'else'", "make them equal")),
    "no_inputs": (_config('backend: "python"'), ("no input", "data_type")),
    "odd_dtype": (
        _config(_CONFIG.format(backend="python").replace("TYPE_FP32", "FP32")), ("'FP32'", "give one of TYPE_"),
    ),
    "odd_backend": (_config(_CONFIG.format(backend="tensorflow")), ("'tensorflow'", "python, onnxruntime")),
    "odd_flag": (_with("idempotent", "yes"), ("'yes'", "true or false")),
    "odd_number": (_with("max_queue_size", "-3"), ("'-3'", "whole number")),
    "no_version": (_config(_CONFIG.format(backend="python"), "latest"), ("no version folder", "/1")),
    "no_code": (_python(None), ("model.py", "put its class Model there")),
    "bad_syntax": (_python("class Model(:\n"), ("cannot be made", "model.py")),
    "bad_import": (_python("import a_module_that_is_not_there\n"), ("a_module_that_is_not_there",)),
    "no_class": (_python("x = 1\n"), ("Model",)),
    "no_execute": (_python(_INIT.format("pass")), ("execute",)),
    "raises_when_made": (_python(_INIT.format("raise RuntimeError('no licence;\\nask')")), ("no licence; ask",)),
    "fails_warm_up": (_python(_GOOD + "    def warm_up(self): 1 / 0\n"), ("warm-up", "division")),
    "leaves_when_made": (_python("import sys; sys.exit(3)\n"), ("leaves_when_made",)),
    "wrong_sha256": (_onnx(None, "0" * 64, real_config=True), ("model.onnx.sha256", "copy it again")),
    "garbage_onnx": (_onnx(b"no model at all" * 9, None), ("model.onnx cannot be loaded",)),
    "other_onnx": (_onnx(None, None), ("config.pbtxt declares", "make them equal")),
}  # fmt: skip

BROKEN = {name: words for name, (_, words) in _WRITERS.items()}


def write_broken(repository: Path) -> None:
    """Adds the broken models to a repository."""
    for name, (write, _) in _WRITERS.items():
        write(repository / name)
