"""The demo over nodes that run already: which of them serve the round, and what their ledgers gained meanwhile.

The nodes append to files in one folder that the demo can read: on one host, or a shared volume. The lines of earlier
rounds stay there, so only what was added since a mark counts. This module never starts or stops a node. Read
`overspill/demo/drive.py` next.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.instance import Readiness
from discovery.registry import open_registry
from fabric.errors import ConfigError, RegistryUnavailable, Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

SERVING_TIMEOUT_S = 60.0
"""As long as the demo gives nodes of its own to start."""
_POLL_S = 0.2
_FOLDER = "OVERSPILL_LEDGER_DIR"


def ledger_folder() -> Path:
    """The folder that the nodes' ledgers are in. Raises ConfigError when it is not told or not there."""
    named = os.environ.get(_FOLDER, "")
    if not named or not Path(named).is_dir():
        raise ConfigError(f"--attach reads the nodes' ledgers; set {_FOLDER} to the folder that theirs is set to")
    return Path(named)


def ledger_marks(folder: Path) -> dict[str, int]:
    """How long each file is now, by its name."""
    return {path.name: path.stat().st_size for path in folder.glob("*.log")}


def ledger_lines(folder: Path, marks: Mapping[str, int]) -> list[int]:
    """The numbers that were appended since the marks were taken."""
    return [int(line) for path in folder.glob("*.log") for line in path.read_bytes()[marks.get(path.name, 0) :].split()]


def wait_serving(registry: str, models: AbstractSet[str]) -> list[str]:
    """The ids of the nodes that are ready, once there is one for each of `models`.

    Raises Unavailable after 60 s, and ConfigError for a registry URL that names none.
    """
    opened = open_registry(registry)
    give_up_at = time.monotonic() + SERVING_TIMEOUT_S
    missing = set(models)
    while True:
        with suppress(RegistryUnavailable):  # it may still be starting, as the nodes may
            ready = [found for found in opened.read() if found.readiness is Readiness.READY]
            offered = {model.name for found in ready for model in found.models if not model.refused}
            missing = set(models) - offered
            if not missing:
                return sorted(found.node_id for found in ready)
        if time.monotonic() > give_up_at:
            raise Unavailable(
                f"no ready node of {registry} serves {', '.join(sorted(missing))}; start nodes with the demo's models"
            )
        time.sleep(_POLL_S)
