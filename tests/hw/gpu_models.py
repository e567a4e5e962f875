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
    """Fills `folder`, but for those that single tests take. For `fake` cards the models compute on the processor. Each
    name in `limits_ms` is one more `gpu_once`, whose runs count as hung after so long."""
    shutil.copytree(HERE, folder, ignore=shutil.ignore_patterns("__pycache__", *APART))
    for name, limit_ms in (limits_ms or {}).items():
        (folder / name).mkdir()
        config = (HERE / "gpu_once" / "config.pbtxt").read_text().replace('"gpu_once"', f'"{name}"')
        limit = f'parameters {{ key: "execution_timeout_ms" value {{ string_value: "{limit_ms}" }} }}\n'
        (folder / name / "config.pbtxt").write_text(config + limit)
    kernel = ON_CPU if fake else HERE / "gpu_double" / "1" / "model.py"
    for name in ("gpu_double", "gpu_once", *(limits_ms or {})):
        (folder / name / "1").mkdir(exist_ok=True)
        shutil.copy(kernel, folder / name / "1" / "model.py")
    if fake:
        shutil.rmtree(folder / "carry")  # it knows cards only
