"""A node on fake cards for tests: a real node, its watcher and its executors, with cards that are folders.

Read `tests/integration/test_gpu_fake.py` next.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from discovery.registry import open_registry
from overspill import Router
from tests.integration.bad_node import NodeProcess, copy_models, wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from discovery.instance import CardFacts, Instance

X = np.arange(64, dtype=np.float32)


class FakeNode:
    """A node with fake cards, and a router to it. `flags` are files that make an injected fault happen once."""

    def __init__(
        self, folder: Path, *faults: str, devices: str = "fake:1", standby: str = "off", extra: str = ""
    ) -> None:
        self.folder = folder
        copy_models(folder / "models", "double", "act")
        self.registry = f"dir:{folder / 'registry'}"
        inject = ",".join(f"{fault}@double:flag={folder / fault}" for fault in faults)
        settings = folder / "node.toml"
        settings.write_text(f'standby = "{standby}"\ninject = "{inject}"\nruntime_dir = "{folder}"\n{extra}')
        self.node = NodeProcess(folder, self.registry, folder / "models", "--config", str(settings), devices=devices)
        self.node.wait_ready()
        self.router = Router.connect(self.registry)

    def instance(self) -> Instance:
        (found,) = open_registry(self.registry).read()
        return found

    def card(self, number: int = 0) -> CardFacts:
        return self.instance().cards[number]

    def file(self, name: str, number: int = 0) -> Path:
        return self.folder / "fake-cards" / f"card-{number}" / name

    def ask(self, timeout_s: float = 20.0) -> tuple[int, int]:
        """(generation, attempts) of a right answer."""
        with self.router.infer("double", {"x": X}, timeout_s=timeout_s) as reply:
            assert np.array_equal(reply["y"], 2 * X)
            return reply.trace.generation, reply.trace.attempts

    def break_next(self, fault: str) -> None:
        (self.folder / fault).touch()

    def await_standby(self) -> None:
        assert wait_until(lambda: self.card().standby in {"full", "context"}, 30.0, 0.02), self.node.log

    def close(self) -> None:
        self.router.close()
        self.node.end()
