"""The models of the GPU tests as a node's repository: `gpu_once` is `gpu_double` under another configuration.

Read `tests/hw/fault_trials.py` next.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent / "models"
ON_CPU = Path(__file__).parents[1] / "integration" / "models" / "double" / "1" / "model.py"


def copy_models(folder: Path, *, fake: bool = False) -> None:
    """Fills `folder`, but for `gpu_where`, which `several_faults.py` takes. For `fake` cards the models compute on the
    processor."""
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__", "gpu_where"))
    kernel = ON_CPU if fake else HERE / "gpu_double" / "1" / "model.py"
    for name in ("gpu_double", "gpu_once"):
        (folder / name / "1").mkdir(exist_ok=True)
        shutil.copy(kernel, folder / name / "1" / "model.py")
    if fake:
        shutil.rmtree(folder / "carry")  # it knows cards only
