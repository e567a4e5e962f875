"""The README's own words, taken out of it: its model, its files, its client; a reader must be able to copy them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.integration.bad_node import ROOT

if TYPE_CHECKING:
    from pathlib import Path

REGISTRY = "/tmp/overspill-registry"
"""Where the README keeps its registry; tests put their own folder in its place."""


def block(language: str, *words: str) -> str:
    """The one block of the README in that language that holds all of `words`."""
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    found = [text for named, text in fenced if named == language and all(word in text for word in words)]
    assert len(found) == 1, f"{len(found)} blocks hold {words}"
    return str(found[0])


def write_model(repository: Path) -> None:
    """`double`, as the README writes it."""
    folder = repository / "double"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(block("python", "class Model"))
    (folder / "config.pbtxt").write_text(block("", 'backend: "python"', "TYPE_FP32"))
