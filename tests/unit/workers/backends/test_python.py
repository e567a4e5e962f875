"""A Python model is what its file says now, and leaves nothing behind when it goes or cannot be made."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from fabric.errors import ModelBroken
from workers.backends.python import PythonModel
from workers.modelconfig import read_config

if TYPE_CHECKING:
    from pathlib import Path

CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 2 ] }
"""
CODE = """
class Model:
    number = {number}
    def __init__(self, config):
        pass
    def execute(self, inputs, outputs):
        pass
"""


def made(folder: Path) -> PythonModel:
    return PythonModel(read_config(CONFIG, "m/config.pbtxt", "m", "1", str(folder)))


def modules() -> list[str]:
    return [name for name in sys.modules if name.startswith("overspill_model_m_1")]


def test_what_was_changed_in_place_is_loaded_whatever_its_time_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "model.py"
    file.write_text(CODE.format(number=1))
    before = file.stat()
    first = made(tmp_path)
    file.write_text(CODE.format(number=2))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    second = made(tmp_path)
    assert (first._model.number, second._model.number) == (1, 2)
    assert len(modules()) == 2  # each is found under a name of its own while both are there
    first.close()
    second.close()
    assert modules() == []


@pytest.mark.parametrize("text", ["1 / 0", "class Other: pass", "def Model(config): return 3", "import no_such_module"])
def test_what_cannot_be_made_leaves_no_module(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.py").write_text(text)
    with pytest.raises(ModelBroken):
        made(tmp_path)
    assert modules() == []
