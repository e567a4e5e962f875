"""Loads a module from its source each time, whatever compiled copy of an earlier text lies beside it.

Python takes such a copy where the file's time and size are as they were, which a model that was changed in place, or
copied with its times, may well be. This module runs nothing by itself. Read `workers/backends/python.py` next.
"""

from __future__ import annotations

from importlib.machinery import SourceFileLoader
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import CodeType


class FreshLoader(SourceFileLoader):
    """The loader of one file, that reads and compiles it anew."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the file as it is now."""
        path = self.get_filename(fullname)
        code: CodeType = self.source_to_code(self.get_data(path), path)
        return code
