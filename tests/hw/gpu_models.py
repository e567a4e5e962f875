"""The models of the GPU tests as a node's repository: `gpu_once` is `gpu_double` under another configuration.

Read `tests/hw/fault_trials.py` next.
"""

from __future__ import annotations

import shutil
from pathlib import Path

HERE = Path(__file__).parent / "models"
APART = ("gpu_where", "gpu_there")
"""Models that single tests take."""
ON_CPU = Path(__file__).parents[1] / "integration" / "models" / "double" / "1" / "model.py"


def copy_models(folder: Path, *, fake: bool = False, limits_ms: dict[str, int] | None = None) -> None:
    """Fills `folder`, but for those that single tests take. For `fake` cards the models compute on the processor.
    `limits_ms` are the times after which a run of some models counts as hung."""
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__", *APART))
    kernel = ON_CPU if fake else HERE / "gpu_double" / "1" / "model.py"
    for name in ("gpu_double", "gpu_once"):
        (folder / name / "1").mkdir(exist_ok=True)
        shutil.copy(kernel, folder / name / "1" / "model.py")
    for name, limit_ms in (limits_ms or {}).items():
        with (folder / name / "config.pbtxt").open("a") as file:
            file.write(f'parameters {{ key: "execution_timeout_ms" value {{ string_value: "{limit_ms}" }} }}\n')
    if fake:
        shutil.rmtree(folder / "carry")  # it knows cards only
