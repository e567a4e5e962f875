"""A guest under QEMU: started from its snapshot, its cables pulled and its CPUs stopped by QEMU's monitor.

This module knows no test. Read `tests/softroce/lab/lab.py` for who has guests, `agent.py` for what runs inside.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from tests.softroce.lab import qemu
from tests.softroce.lab.cache import LabError
from tests.softroce.lab.guest import START_S, Guest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.softroce.lab.image import Image


class EmulatedGuest(Guest):
    """One under QEMU."""

    def __init__(self, node: int, nodes: int, folder: Path, words: list[str], memory: Path) -> None:
        super().__init__(node, folder, [*words, "-incoming", f"exec:cat {memory}"])
        try:
            self._monitor = qemu.Monitor(folder / "qmp")
            self._held.append(self._monitor)
            self._listen(qemu.connect(folder / "talk"))
            self._let_go(nodes)
        except BaseException:  # QEMU must not outlive it
            self.kill()
            raise

    def _let_go(self, nodes: int) -> None:
        # It stays open: QEMU hands the line over byte by byte, and drops what is left when the other end goes.
        go = qemu.connect(self._folder / "go")
        self._held.append(go)
        end_s = time.monotonic() + START_S
        while self._monitor.ask("query-status")["status"] == "inmigrate":
            if time.monotonic() > end_s:
                raise LabError(f"guest {self.node} did not resume: {self.last_words()}")
            time.sleep(0.01)
        self._monitor.ask("cont")
        go.sendall(f"go {self.node} {nodes} {time.time():.3f}\n".encode())

    def cable(self, card: int, *, up: bool) -> None:
        """Pulls or plugs the cable of a card: 0 carries RDMA, 1 the rest. What is sent meanwhile is lost."""
        self._monitor.ask("set_link", name=f"net{card}", up=up)

    def pause(self) -> None:
        """Stops its CPUs."""
        self._monitor.ask("stop")

    def resume(self) -> None:
        """Lets them go on."""
        self._monitor.ask("cont")


def shares(root: Path) -> tuple[Path, Path]:
    """What a guest sees of the machine, read-only: the checkout, and the environment's packages."""
    found = sorted((root / ".venv/lib").glob("python3.11/site-packages"))
    return root, found[0] if found else root / "tests/softroce"


def wires(node: int, nodes: int, folder: Path) -> tuple[str, str]:
    """The other ends of both cards: nothing for one guest, the other guest's for two."""
    if nodes == 1:
        return "hubport,hubid=0", "hubport,hubid=1"
    made = []
    for card in range(2):
        ends = [f"{folder}/w{card}{end}" for end in (node, 1 - node)]
        made.append(f"dgram,local.type=unix,local.path={ends[0]},remote.type=unix,remote.path={ends[1]}")
    return made[0], made[1]


def start(
    image: Image, shape: qemu.Shape, memory: Path, root: Path, node: int, nodes: int, folder: Path
) -> EmulatedGuest:
    """Starts guest `node` of `nodes`; `folder` is the lab's, and each guest gets one below it."""
    own = folder / f"g{node}"
    own.mkdir()
    words = qemu.command(image, shape, own, shares(root), wires(node, nodes, folder))
    return EmulatedGuest(node, nodes, own, words, memory)
