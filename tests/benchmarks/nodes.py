"""A real node for the benchmarks: its own process, the two models of this folder, one executor for each core given."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from discovery.instance import Readiness
from discovery.registry import open_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

MODELS = Path(__file__).parent / "models"
READY_TIMEOUT_S = 60.0


@contextmanager
def running_node(wires: str, *arguments: str, executors: int = 1) -> Iterator[str]:
    """Starts a node and gives the URL of its registry; the node and all its files are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="overspill-bench-") as name:
        registry = f"dir:{name}/registry"
        command = [sys.executable, "-m", "overspill", "node", "--registry", registry, "--models", str(MODELS)]
        command += ["--wires", wires, "--devices", f"cpu:{executors}", "--listen", "127.0.0.1:0", "--exit-with-parent"]
        with (Path(name) / "node.log").open("wb") as log:
            node = subprocess.Popen([*command, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            give_up_at = time.monotonic() + READY_TIMEOUT_S
            while not any(found.readiness is Readiness.READY for found in _read(registry)):
                if node.poll() is not None or time.monotonic() > give_up_at:
                    raise RuntimeError(f"the node did not come up: {(Path(name) / 'node.log').read_text()[-800:]}")
                time.sleep(0.05)
            yield registry
        finally:
            node.terminate()
            try:
                node.wait(10)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


def _read(registry: str):
    from fabric.errors import RegistryUnavailable

    try:
        return open_registry(registry).read()
    except RegistryUnavailable:  # the node has not made the folder yet
        return ()
