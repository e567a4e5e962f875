"""`overspill demo --lab`: hands the demo over to the soft-RoCE lab, which lies with the tests of the checkout.

The lab builds and boots guests, which no installation should bring along; so this is the only file of the product that
reaches into `tests/`, by name, when it is asked to. It never starts anything itself. Read `tests/softroce/lab/demo.py`.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from fabric.errors import ConfigError
from overspill.demo.show import check_writable, interruptible

if TYPE_CHECKING:
    from collections.abc import Callable

STORY = Path("tests", "softroce", "lab", "demo.py")
CHECKOUT = Path(__file__).resolve().parents[2]


def show_in_lab(seed: int, report: Path, *, faults: bool, checkout: Path = CHECKOUT) -> int:
    """Runs it; returns the exit code: 0, or 1 when something was lost, wrong or duplicated. Raises ConfigError where
    the checkout is not there or the report cannot be written, Unavailable where there are no guests."""
    if not (checkout / STORY).is_file():
        raise ConfigError(
            "--lab needs the source checkout, which has the lab in tests/softroce, and this is an installation without"
            " it; run `make demo ARGS=--lab` in a checkout"
        )
    check_writable(report)
    story = importlib.import_module(".".join(STORY.with_suffix("").parts))
    if Path(str(story.__file__)).resolve() != checkout / STORY:
        raise ConfigError(f"{story.__file__} is in the way of the checkout's own tests; run it where that is not found")
    show: Callable[..., int] = story.show
    with interruptible():
        return show(seed, report, faults=faults)
