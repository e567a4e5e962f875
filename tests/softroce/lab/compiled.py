"""The package as `OVERSPILL_COMPILE=1` builds it, inside guests: a stage of its own for what the compiled one costs.

`make compiled` makes it; nothing here does. Guests see it in the checkout, and the processes of such a stage import it
first. Read `tests/softroce/lab/remote.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.softroce.lab.agent import FIRST
from tests.softroce.lab.lab import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = ".cache/compiled"


def environment(*, compiled: bool) -> dict[str, str]:
    """What the processes of a stage get."""
    return {FIRST: f"/src/{FOLDER}"} if compiled else {}


def unavailable(root: Path = ROOT) -> str:
    """Why there is no compiled package of this checkout; empty if there is one."""
    made = root / FOLDER
    if not any(made.glob("*__mypyc*.so")):
        return "the package is not compiled: run `make compiled`"
    for package in ("fabric", "workers"):
        for source in sorted((root / package).rglob("*.py")):
            copy = made / source.relative_to(root)
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                return f"{FOLDER} is of another {source.relative_to(root)}: run `make compiled`"
    return ""
