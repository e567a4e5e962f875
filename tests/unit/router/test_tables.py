"""The tables that the module docstrings tell a reader are the tables that run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from router import attempt, workers

if TYPE_CHECKING:
    from types import ModuleType

_ROW = re.compile(r"^ {4}([A-Z_]+)\s*\|\s*([A-Z_]+)\s*\|\s*([A-Z_]+)\s*\|", re.MULTILINE)


@pytest.mark.parametrize("module", [attempt, workers], ids=lambda module: module.__name__)
def test_the_docstring_tells_each_edge_and_no_other(module: ModuleType) -> None:
    told = set(_ROW.findall(module.__doc__ or ""))
    run = {
        (state.name, event.name, target.name)
        for state, edges in module.EDGES.items()
        for event, target in edges.items()
    }
    assert told == run
