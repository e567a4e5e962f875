"""A model that must never run twice for one request: it appends the request's number to a file.

Each execution is one line, written with one `write` to a file opened for appending, so that an audit can count
executions afterwards, also those whose answer never arrived. The folder comes from OVERSPILL_LEDGER_DIR.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.backends.base import Inputs, ModelConfig, Outputs


class Model:
    """Appends and answers with the same number."""

    def __init__(self, config: ModelConfig) -> None:
        folder = os.environ.get("OVERSPILL_LEDGER_DIR")
        if not folder:
            raise ValueError("the ledger needs a folder: set OVERSPILL_LEDGER_DIR before the node starts")
        path = Path(folder) / f"ledger-{os.getpid()}.log"
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def execute(self, inputs: Inputs, outputs: Outputs) -> None:
        """Appends one line. `number`: INT64 [1] in and out; negative numbers are refused."""
        number = int(inputs["number"][0])
        if number < 0:
            raise ValueError(f"number is {number}; send 0 or more")
        os.write(self._fd, b"%d\n" % number)
        outputs["number"] = inputs["number"]
